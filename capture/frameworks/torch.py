"""torch: hooks that see forward, backward, the optimizer, waits for data and clipping, in whatever framework.

They are in place until the run has ended, see `FOLLOWED` for whom they serve, and do nothing where nobody is followed:

    DataLoader's iterator                  waits, phase ``data``
    modules that are called from no other  phase ``forward``: found by global hooks in the first step, then hooked alone
    torch.autograd.backward                phase ``backward``; its scalar is the loss, if the step has one
    optimizers' global hooks               phase ``optimizer``; lr; without a leader, the end of the step
    torch.nn.utils.clip_grad_norm_         grad_norm: the norm before clipping
    GradScaler.scale                       the loss before it is scaled
    DistributedDataParallel                its all-reduce is timed
"""

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from ranklake.capture.frameworks.follower import FOLLOWED, MOST_MICRO, Follower
from ranklake.capture.frameworks.patches import PATCHES

__all__ = ["install"]


def _dead_reference() -> None:
    """Return what a reference to a dead optimizer does."""


class Hooks:
    """What the hooks know of the training that is followed.

    Attributes
    ----------
    pacer
        The optimizer whose steps are training's where no framework leads: the first that stepped, or one that has
        stepped twice since that did.
    roots
        Modules that are called from no other, hooked.
    """

    def __init__(self) -> None:
        self.pacer: Callable[[], Any] = _dead_reference
        self.roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._others: list[int] = []
        self._searching: list[Any] = []
        self._is_searching = False
        self._hooks: list[Any] = []
        self._optimizers: list[Any] = []
        self._unscaled: Any = None
        self._follower: Follower | None = None

    def follower(self) -> Follower | None:
        """Return the follower of this process; None without one."""
        follower = FOLLOWED[0] if FOLLOWED else None
        if follower is None or not follower.is_on:
            return None
        if follower is not self._follower:
            self._follower, self.pacer = follower, _dead_reference
            self.search()
        return follower

    # ── forward ──

    def search(self) -> None:
        """Look for modules that are called from no other until a step has ended."""
        self._is_searching = True
        self._look_for_calls()

    def _look_for_calls(self) -> None:
        if self._is_searching and not self._searching:
            self._searching = [register_module_forward_pre_hook(self._before_any)]

    def _stop_looking(self) -> None:
        for handle in self._searching:
            handle.remove()
        self._searching = []

    def _stop_searching(self) -> None:
        self._is_searching = False
        self._stop_looking()

    def let_go(self) -> None:
        """Remove the hooks of torch's own kinds."""
        self._stop_searching()
        for handle in [*self._hooks, *self._optimizers]:
            handle.remove()
        self._hooks, self._optimizers, self.roots, self._follower = [], [], weakref.WeakSet(), None

    def hook_optimizers(self) -> None:
        """See every optimizer's steps."""
        if not self._optimizers:
            self._optimizers = [
                register_optimizer_step_pre_hook(self.before_optimizer),
                register_optimizer_step_post_hook(self.after_optimizer),
            ]

    def _before_any(self, module: Any, _: object) -> None:
        """Handle an outermost call. The search pauses within it, as a compiler would trace it and compile again."""
        if torch.compiler.is_compiling() or module in self.roots:
            return
        if _is_training(module):
            self.roots.add(module)
            self._hooks.append(module.register_forward_pre_hook(self._before))
            self._hooks.append(module.register_forward_hook(self._after, always_call=True))
            self._before(module)
            return

        def after(*_: object) -> None:
            ended.remove()
            self._look_for_calls()

        ended = module.register_forward_hook(after, always_call=True)
        self._stop_looking()

    def _before(self, module: Any, *_: object) -> None:
        if torch.compiler.is_compiling():
            return
        follower = self.follower()
        if follower is not None and _is_training(module):
            with follower.contain_errors():
                if follower.leader is None:
                    follower.begin_step()
                elif hasattr(follower.leader, "number"):  # its steps begin with a forward pass
                    follower.begin_step(follower.leader.number())
                follower.enter("forward")
        self._stop_looking()

    def _after(self, *_: object) -> None:
        if torch.compiler.is_compiling():
            return
        follower = self.follower()
        if follower is not None:
            with follower.contain_errors():
                follower.leave("forward")
        self._look_for_calls()

    def compile(self, original: Callable[..., None], module: Any, *args: Any, **kwargs: Any) -> None:
        """Compile a module in place. Its hooks are compiled with it, so that its calls are watched from outside."""
        original(module, *args, **kwargs)
        compiled = module._compiled_call_impl  # noqa: SLF001 - there is no public one

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            follower = None if torch.compiler.is_compiling() else self.follower()
            if follower is None or follower.is_in("forward"):
                return compiled(*args, **kwargs)
            self._before(module)
            try:
                return compiled(*args, **kwargs)
            finally:
                self._after()

        module._compiled_call_impl = call  # noqa: SLF001

    # ── backward ──

    def backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `torch.autograd.backward` as a phase."""
        follower = self.follower()
        if follower is None:
            return original(*args, **kwargs)
        with follower.contain_errors():
            if follower.leader is None:
                follower.begin_step()
            follower.take_loss(self._loss(args[0] if args else kwargs.get("tensors")))
            follower.enter("backward")
        try:
            return original(*args, **kwargs)
        finally:
            with follower.contain_errors():
                follower.leave("backward")
                follower.micro = min(follower.micro + 1, MOST_MICRO)

    def _loss(self, root: Any) -> Any:
        if isinstance(root, (list, tuple)) and len(root) == 1:
            root = root[0]
        loss, self._unscaled = self._unscaled, None
        if loss is None:
            loss = root
        is_scalar = isinstance(loss, torch.Tensor) and loss.numel() == 1
        return loss.detach().clone() if is_scalar else None

    def scale(self, original: Callable[..., Any], scaler: Any, outputs: Any) -> Any:
        """Remember what `GradScaler.scale` is given."""
        if self.follower() is not None and isinstance(outputs, torch.Tensor):
            self._unscaled = outputs
        return original(scaler, outputs)

    # ── optimizer ──

    def before_optimizer(self, optimizer: Any, *_: object) -> None:
        """Begin the phase, and take the learning rate that is used now."""
        follower = self.follower()
        if follower is not None:
            with follower.contain_errors():
                if follower.leader is None:
                    follower.begin_step()
                if follower.step is not None:
                    follower.facts.setdefault("lr", optimizer.param_groups[0]["lr"])
                follower.enter("optimizer")

    def after_optimizer(self, optimizer: Any, *_: object) -> None:
        """End the phase, and the step where no framework does."""
        follower = self.follower()
        if follower is not None:
            with follower.contain_errors():
                follower.leave("optimizer")
                self._stop_searching()
                if follower.leader is None and self._paces(optimizer):
                    follower.end_step()

    def _paces(self, optimizer: Any) -> bool:
        pacer = self.pacer()
        if pacer is None or (pacer is not optimizer and id(optimizer) in self._others):
            self.pacer = weakref.ref(optimizer)
        elif pacer is not optimizer:
            self._others.append(id(optimizer))
            return False
        self._others.clear()
        return True

    def clip(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Take the norm that `clip_grad_norm_` returns."""
        norm = original(*args, **kwargs)
        follower = self.follower()
        if follower is not None and follower.step is not None:
            with follower.contain_errors():
                follower.facts["grad_norm"] = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return norm

    # ── the others ──

    def fetch(self, original: Callable[[Any], Any], batches: Any) -> Any:
        """Time what a DataLoader's iterator takes for a batch."""
        follower = self.follower()
        if follower is None:
            return original(batches)
        slots = follower.run.slots
        if slots is None:
            return original(batches)
        return slots.waits.time(id(batches), lambda: original(batches))

    def wrap_ddp(self, original: Callable[..., None], model: Any, *args: Any, **kwargs: Any) -> None:
        """Make a DistributedDataParallel and time its all-reduce."""
        original(model, *args, **kwargs)
        follower = self.follower()
        if follower is not None:
            follower.run.collectives(model)


HOOKS: Final = Hooks()
_PLACES: Final = (
    (torch.autograd, "backward", "backward"),
    (torch.nn.utils, "clip_grad_norm_", "clip"),
    (torch.nn.Module, "compile", "compile"),
    (torch.amp.GradScaler, "scale", "scale"),
    (getattr(dataloader, "_BaseDataLoaderIter", None), "__next__", "fetch"),
    (torch.nn.parallel.DistributedDataParallel, "__init__", "wrap_ddp"),
)
"""Where torch has no hook of its own: what is replaced, and by which method of `Hooks`."""


def install() -> None:
    """Put the hooks in place, if they are not, and look for the model that is trained now."""
    for place, name, method in _PLACES:
        PATCHES.put(place, name, functools.partial(_wrap_method, getattr(HOOKS, method)))
    HOOKS.hook_optimizers()
    # The warning is right: our hooks are called twice around a compiled module, which does no harm.
    warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks", UserWarning)
    HOOKS.search()
    PATCHES.undo_by(HOOKS.let_go)


def _wrap_method(method: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def through(*args: Any, **kwargs: Any) -> Any:
        if not FOLLOWED or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        return method(original, *args, **kwargs)

    return through


def _is_training(module: Any) -> bool:
    """Whether a module that is called now is being trained."""
    # What wraps the model, as DistributedDataParallel does, is put into training by some and left alone by others.
    is_training = bool(module.training) or any(child.training for child in module.children())
    return is_training and torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
