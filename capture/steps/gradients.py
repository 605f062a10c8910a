"""Gradients: time the all-reduce of DistributedDataParallel without waiting for it.

    backward   ├── compute ──┬── bucket 0 ready ──┬── last bucket ready ┤ begin │ DDP waits │ end ┤
    backend                  ├──── all_reduce ────┤├──────── all_reduce ────────┤

A communication hook starts the same all-reduce as DDP would, and returns its future to DDP. The span of each bucket
ends when its future completes. The wait of training, which is the part that does not overlap with backward, is recorded
as phase ``collective``. It is timed by two callbacks of autograd's engine, before and after DDP's own callback, which
waits. On CUDA, the callbacks record events in the stream.
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
"""DDP's communication hook: called with a state and a bucket, returns a future of the bucket's reduced gradients."""


class Timer(Protocol):
    """Times the collectives of one run: the interface of `ranklake.capture.steps.collectives.Collectives`."""

    sink: Sink
    events: Events

    def time(self, name: str, call: Callable[[], Any], arguments: Mapping[str, Any], tensors: Sequence[Any]) -> Any:  # noqa: ANN401 - the call's
        """Call a function that starts a collective, record the collective, and return the result."""

    def wait(self, *, on_cuda: bool) -> AbstractContextManager[object]:
        """Return a context in which training waits for a collective."""


class Gradients:
    """The hook of one DistributedDataParallel model. torch keeps it as long as the model exists.

    Attributes
    ----------
    state, user_hook
        State and function of the user's own hook; None for the plain all-reduce.
    has_joined
        Whether this rank is out of batches under ``model.join()``. It then contributes zeros to the all-reduces of
        other ranks, outside a backward pass; these are not recorded.
    counts_ranks
        Whether the mean is over the ranks that have not joined: ``model.join(divide_by_initial_world_size=False)``.
    """

    def __init__(self, timer: Timer, group: Any) -> None:  # noqa: ANN401 - torch's
        self._group = group
        self.state: object = None
        self.user_hook: Hook | None = None
        self.has_joined = self.counts_ranks = False
        self.follow(timer)

    def follow(self, timer: Timer) -> None:
        """Use the timer of another run from now on."""
        self._timer = timer

    def hook(self) -> Hook:
        """Return the function to register, with the annotations that DDP requires."""
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
        name = "all_reduce" if self.user_hook is None else getattr(self.user_hook, "__name__", "gradient_hook")
        return self._timer.time(name, lambda: self._start(bucket), {"group": self._group, "async_op": True}, [buffer])

    def _start(self, bucket: Any) -> Any:  # noqa: ANN401 - torch's
        if self.user_hook is not None:
            return self.user_hook(self.state, bucket)
        distributed: Any = sys.modules["torch.distributed"]
        ranks = self._ranks(bucket.buffer()) if self.counts_ranks else self._group.size()
        # Divide before the sum, so that it does not overflow, and multiply by the reciprocal: this is bitwise equal to
        # DDP without a hook.
        mean = bucket.buffer().mul_(1.0 / ranks)
        return distributed.all_reduce(mean, group=self._group, async_op=True).get_future().then(_first)

    def _ranks(self, like: Any) -> float:  # noqa: ANN401 - torch's
        """Return the number of ranks that have not joined. It waits for other ranks, as DDP does in this case."""
        torch: Any = sys.modules["torch"]
        count = torch.tensor([0.0 if self.has_joined else 1.0], device=like.device)
        torch.distributed.all_reduce(count, group=self._group)
        return float(count.item())

    def _bracket(self, *, on_cuda: bool) -> None:
        torch: Any = sys.modules["torch"]
        after = torch.autograd.Variable._execution_engine.queue_callback  # noqa: SLF001 - there is no public one; FSDP uses it, too
        wait = self._timer.wait(on_cuda=on_cuda)

        def begin() -> None:
            wait.__enter__()
            after(end)  # after DDP's callback, which is queued by now

        def end() -> None:
            wait.__exit__(None, None, None)

        after(begin)


_watched: "weakref.WeakKeyDictionary[Any, Gradients]" = weakref.WeakKeyDictionary()


def watch_gradients(timer: Timer, model: object) -> None:
    """Time the all-reduce of each DistributedDataParallel in a model.

    A hook that is registered later replaces the plain all-reduce, and is timed, too. A hook that was registered before
    is kept, because torch allows only one; an event reports it. Its calls of torch.distributed's functions are timed
    like all others.
    """
    torch: Any = sys.modules["torch"]
    if not isinstance(model, torch.nn.Module):
        return
    for module in model.modules():
        if not isinstance(module, torch.nn.parallel.DistributedDataParallel):
            continue
        if module in _watched:
            _watched[module].follow(timer)
        elif module._comm_hooks:  # noqa: SLF001 - torch has no public attribute
            timer.events.add(
                "collectives_not_timed",
                severity="warning",
                message="DistributedDataParallel has a communication hook: call run.collectives before registering it",
            )
        else:
            _register_hook(module, Gradients(timer, module.process_group))


def _register_hook(model: Any, gradients: Gradients) -> None:  # noqa: ANN401 - torch's
    hook = gradients.hook()
    model.register_comm_hook(None, hook)
    model._comm_hooks.remove((hook, None))  # noqa: SLF001 - DDP checks this list for a hook of the user
    _watched[model] = gradients
    kind = type(model)
    if not hasattr(kind.register_comm_hook, "ranklake_replaces"):
        kind.register_comm_hook = _registering(kind.register_comm_hook)
        kind.join_hook = _joining(kind.join_hook)


def _registering(original: Callable[..., None]) -> Callable[..., None]:
    """Return a replacement for DDP's method, which passes the user's hook to ours if the model has ours."""

    @functools.wraps(original)
    def register_comm_hook(self: Any, state: object, hook: Hook) -> None:  # noqa: ANN401 - torch's
        ours = _watched.get(self)
        if ours is None:
            original(self, state, hook)
            return
        self._check_comm_hook(hook)
        if ours.user_hook is not None:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        self._comm_hooks.append((hook, state))
        ours.state, ours.user_hook = state, hook

    register_comm_hook.ranklake_replaces = True  # type: ignore[attr-defined]
    return register_comm_hook


def _joining(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement for DDP's method, which informs our hook when ``model.join()`` begins, joins and ends."""

    @functools.wraps(original)
    def join_hook(self: Any, **options: Any) -> Any:  # noqa: ANN401 - torch's
        hook = original(self, **options)
        ours = _watched.get(self)
        if ours is None:
            return hook
        ours.has_joined, ours.counts_ranks = False, not options.get("divide_by_initial_world_size", True)
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


def _first(future: Any) -> Any:  # noqa: ANN401 - torch's
    return future.value()[0]
