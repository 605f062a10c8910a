"""Gradients: the all-reduce of DistributedDataParallel, timed without waiting for it.

    backward   ├── compute ──┬── bucket 0 ready ──┬── last bucket ready ┤ begin │ DDP waits │ end ┤
    backend                  ├──── all_reduce ────┤├──────── all_reduce ────────┤

A hook starts the same all-reduce as DDP would, and hands its future to DDP as it is: each bucket's span ends when its
future does. What training itself waits for, the part that is not hidden behind backward, is phase ``collective``: two
callbacks of autograd's engine, one on each side of DDP's own, which waits. On CUDA the two put events into the stream.
"""

import functools
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ranklake.capture.lanes.sink import Sink
from ranklake.capture.steps.events import Events

Hook = Callable[[Any, Any], Any]
"""DDP's: called with a state and a bucket, returns a future of the bucket's reduced gradients."""


class Timer(Protocol):
    """What times the collectives of one run; see `ranklake.capture.steps.collectives.Collectives`."""

    sink: Sink
    events: Events

    def time(self, name: str, call: Callable[[], Any], given: Mapping[str, Any], tensors: Sequence[Any]) -> Any:  # noqa: ANN401 - the call's
        """Make a call that starts a collective, and record it."""

    def wait(self, *, on_cuda: bool) -> AbstractContextManager[object]:
        """Return a context in which training waits for a collective."""


class Gradients:
    """The hook of one DistributedDataParallel model, which torch holds on to as long as the model.

    Attributes
    ----------
    state, chosen
        The user's own hook; None for the plain all-reduce.
    has_joined
        Under ``model.join()`` this rank is out of batches: it gives zeros to the others' all-reduces, outside of a
        backward pass, and they are none of its steps.
    counts_ranks
        Under ``model.join(divide_by_initial_world_size=False)`` the mean is over the ranks that have not joined.
    """

    def __init__(self, timer: Timer, group: Any) -> None:  # noqa: ANN401 - torch's
        self._group = group
        self.state: object = None
        self.chosen: Hook | None = None
        self.has_joined = self.counts_ranks = False
        self.follow(timer)

    def follow(self, timer: Timer) -> None:
        """Record in another run from here on."""
        self._timer = timer

    def hook(self) -> Hook:
        """Return the function to register; DDP insists on its annotations."""
        torch: Any = sys.modules["torch"]

        def ranklake_timed(_: Any, bucket: Any) -> Any:  # noqa: ANN401 - torch's
            return self._reduce(bucket)

        ranklake_timed.__annotations__ = {
            "bucket": torch.distributed.GradBucket,
            "return": torch.futures.Future[torch.Tensor],
        }
        return ranklake_timed

    def _reduce(self, bucket: Any) -> Any:  # noqa: ANN401 - torch's
        if self.has_joined or not self._timer.sink.enabled:
            return self._start(bucket)
        buffer = bucket.buffer()
        if bucket.is_last():
            try:
                self._bracket(on_cuda=buffer.is_cuda)
            except Exception as error:  # noqa: BLE001 - telemetry never raises into training
                self._timer.sink.trouble("timing gradients", error, "spans")
        name = "all_reduce" if self.chosen is None else getattr(self.chosen, "__name__", "gradient_hook")
        return self._timer.time(name, lambda: self._start(bucket), {"group": self._group, "async_op": True}, [buffer])

    def _start(self, bucket: Any) -> Any:  # noqa: ANN401 - torch's
        if self.chosen is not None:
            return self.chosen(self.state, bucket)
        distributed: Any = sys.modules["torch.distributed"]
        ranks = self._ranks(bucket.buffer()) if self.counts_ranks else self._group.size()
        # Before the sum, lest it overflows, and by the reciprocal: to the last bit what DDP without a hook computes.
        mean = bucket.buffer().mul_(1.0 / ranks)
        return distributed.all_reduce(mean, group=self._group, async_op=True).get_future().then(_first)

    def _ranks(self, like: Any) -> float:  # noqa: ANN401 - torch's
        """Return how many ranks have not joined. It waits for the others, as DDP without a hook does then."""
        torch: Any = sys.modules["torch"]
        count = torch.tensor([0.0 if self.has_joined else 1.0], device=like.device)
        torch.distributed.all_reduce(count, group=self._group)
        return float(count.item())

    def _bracket(self, *, on_cuda: bool) -> None:
        torch: Any = sys.modules["torch"]
        after = torch.autograd.Variable._execution_engine.queue_callback  # noqa: SLF001 - FSDP has no other, either
        wait = self._timer.wait(on_cuda=on_cuda)

        def begin() -> None:
            wait.__enter__()
            after(end)  # behind DDP's callback, which is queued by now

        def end() -> None:
            wait.__exit__(None, None, None)

        after(begin)


_watched: "weakref.WeakKeyDictionary[Any, Gradients]" = weakref.WeakKeyDictionary()


def watch_gradients(timer: Timer, model: object) -> None:
    """Time the all-reduce of each DistributedDataParallel in a model.

    A hook that is registered with the model later takes the place of the plain all-reduce, and is timed as well. One
    that was registered before stays: torch takes one only. Then an event says so, and the collectives that it makes by
    torch.distributed's functions are timed as those are.
    """
    torch: Any = sys.modules["torch"]
    if not isinstance(model, torch.nn.Module):
        return
    for module in model.modules():
        if not isinstance(module, torch.nn.parallel.DistributedDataParallel):
            continue
        if module in _watched:
            _watched[module].follow(timer)
        elif module._comm_hooks:  # noqa: SLF001 - torch has no public way to ask
            timer.events.add(
                "collectives_not_timed",
                severity="warning",
                message="DistributedDataParallel has a communication hook: call run.collectives before registering it",
            )
        else:
            _take(module, Gradients(timer, module.process_group))


def _take(model: Any, gradients: Gradients) -> None:  # noqa: ANN401 - torch's
    hook = gradients.hook()
    model.register_comm_hook(None, hook)
    model._comm_hooks.remove((hook, None))  # noqa: SLF001 - DDP asks there whether the user has one
    _watched[model] = gradients
    kind = type(model)
    if not hasattr(kind.register_comm_hook, "ranklake_takes"):
        kind.register_comm_hook = _registering(kind.register_comm_hook)
        kind.join_hook = _joining(kind.join_hook)


def _registering(original: Callable[..., None]) -> Callable[..., None]:
    """Return DDP's method, which hands a hook to ours where the model has that one already."""

    @functools.wraps(original)
    def register_comm_hook(self: Any, state: object, hook: Hook) -> None:  # noqa: ANN401 - torch's
        ours = _watched.get(self)
        if ours is None:
            original(self, state, hook)
            return
        self._check_comm_hook(hook)
        if ours.chosen is not None:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        self._comm_hooks.append((hook, state))
        ours.state, ours.chosen = state, hook

    register_comm_hook.ranklake_takes = True  # type: ignore[attr-defined]
    return register_comm_hook


def _joining(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return DDP's method, which tells our hook of ``model.join()``: its begin, its end, and when this rank joins."""

    @functools.wraps(original)
    def join_hook(self: Any, **asked: Any) -> Any:  # noqa: ANN401 - torch's
        hook = original(self, **asked)
        ours = _watched.get(self)
        if ours is None:
            return hook
        ours.has_joined, ours.counts_ranks = False, not asked.get("divide_by_initial_world_size", True)
        main, post = hook.main_hook, hook.post_hook

        def main_hook() -> None:
            ours.has_joined = True
            main()

        def post_hook(is_last_joiner: bool) -> None:
            ours.has_joined = ours.counts_ranks = False
            post(is_last_joiner)

        hook.main_hook, hook.post_hook = main_hook, post_hook
        return hook

    return join_hook


def _first(done: Any) -> Any:  # noqa: ANN401 - torch's
    return done.value()[0]
