"""torch: hooks for forward, backward, the optimizer, waits for data and clipping, which work with any framework.

They remain until the run ends. While the process has no follower (`FOLLOWED`), they do nothing.

    DataLoader's iterator                  waits, phase ``data``
    outermost modules                      phase ``forward``; found by a global hook in the first step, then hooked
    torch.autograd.backward                phase ``backward``; its scalar argument is the loss
    optimizers' global hooks               phase ``optimizer``; lr; without a leader, the end of the step
    torch.nn.utils.clip_grad_norm_         grad_norm: the norm before clipping
    GradScaler.scale                       the loss before scaling
    DistributedDataParallel                duration of its all-reduce
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
    """Return None, like a weak reference to a dead optimizer."""


class Hooks:
    """The hooks in torch, and their state.

    Attributes
    ----------
    pacer
        Weak reference to the optimizer whose steps end training's steps if there is no leader: the first optimizer that
        stepped, or another one that has since stepped twice without it.
    roots
        Hooked modules: those that no other module calls.
    """

    def __init__(self) -> None:
        self.pacer: Callable[[], Any] = _dead_reference
        self.roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._other_optimizers: list[int] = []
        self._search_hooks: list[Any] = []
        self._is_searching = False
        self._module_hooks: list[Any] = []
        self._optimizer_hooks: list[Any] = []
        self._unscaled: Any = None
        self._follower: Follower | None = None

    def follower(self) -> Follower | None:
        """Return the follower of this process; None if there is none, or it does not record."""
        follower = FOLLOWED[0] if FOLLOWED else None
        if follower is None or not follower.is_on:
            return None
        if follower is not self._follower:
            self._follower, self.pacer = follower, _dead_reference
            self.search()
        return follower

    # ── forward ──

    def search(self) -> None:
        """Search for outermost modules until a step has ended."""
        self._is_searching = True
        self._resume_search()

    def _resume_search(self) -> None:
        if self._is_searching and not self._search_hooks:
            self._search_hooks = [register_module_forward_pre_hook(self._before_any)]

    def _pause_search(self) -> None:
        for handle in self._search_hooks:
            handle.remove()
        self._search_hooks = []

    def _end_search(self) -> None:
        self._is_searching = False
        self._pause_search()

    def remove(self) -> None:
        """Remove all hooks of modules and optimizers."""
        self._end_search()
        for handle in [*self._module_hooks, *self._optimizer_hooks]:
            handle.remove()
        self._module_hooks, self._optimizer_hooks = [], []
        self.roots, self._follower = weakref.WeakSet(), None

    def hook_optimizers(self) -> None:
        """Register hooks for the steps of all optimizers."""
        if not self._optimizer_hooks:
            self._optimizer_hooks = [
                register_optimizer_step_pre_hook(self.before_optimizer),
                register_optimizer_step_post_hook(self.after_optimizer),
            ]

    def _before_any(self, module: Any, _: object) -> None:
        """Add hooks to an outermost module. The search pauses within its call, so that compiled code is kept."""
        if torch.compiler.is_compiling() or module in self.roots:
            return
        if _is_training(module):
            self.roots.add(module)
            self._module_hooks.append(module.register_forward_pre_hook(self._before))
            self._module_hooks.append(module.register_forward_hook(self._after, always_call=True))
            self._before(module)
            return

        def after(*_: object) -> None:
            after_hook.remove()
            self._resume_search()

        after_hook = module.register_forward_hook(after, always_call=True)
        self._pause_search()

    def _before(self, module: Any, *_: object) -> None:
        if torch.compiler.is_compiling():
            return
        follower = self.follower()
        if follower is not None and _is_training(module):
            with follower.contain_errors():
                if follower.leader is None:
                    follower.begin_step()
                elif hasattr(follower.leader, "number"):  # this leader's steps begin with a forward pass
                    follower.begin_step(follower.leader.number())
                follower.enter("forward")
        self._pause_search()

    def _after(self, *_: object) -> None:
        if torch.compiler.is_compiling():
            return
        follower = self.follower()
        if follower is not None:
            with follower.contain_errors():
                follower.leave("forward")
        self._resume_search()

    def compile(self, original: Callable[..., None], module: Any, *args: Any, **kwargs: Any) -> None:
        """Compile a module in place, and wrap the compiled call, since hooks within it are compiled away."""
        original(module, *args, **kwargs)
        compiled = module._compiled_call_impl  # noqa: SLF001 - no public attribute exists

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
        """Keep the argument of `GradScaler.scale`, the unscaled loss."""
        if self.follower() is not None and isinstance(outputs, torch.Tensor):
            self._unscaled = outputs
        return original(scaler, outputs)

    # ── optimizer ──

    def before_optimizer(self, optimizer: Any, *_: object) -> None:
        """Begin phase ``optimizer``, and record the learning rate."""
        follower = self.follower()
        if follower is not None:
            with follower.contain_errors():
                if follower.leader is None:
                    follower.begin_step()
                if follower.step is not None:
                    follower.facts.setdefault("lr", optimizer.param_groups[0]["lr"])
                follower.enter("optimizer")

    def after_optimizer(self, optimizer: Any, *_: object) -> None:
        """End phase ``optimizer``, and without a leader the step."""
        follower = self.follower()
        if follower is not None:
            with follower.contain_errors():
                follower.leave("optimizer")
                self._end_search()
                if follower.leader is None and self._is_pacer(optimizer):
                    follower.end_step()

    def _is_pacer(self, optimizer: Any) -> bool:
        """Whether an optimizer's step ends the step; updates `pacer`."""
        pacer = self.pacer()
        if pacer is None or (pacer is not optimizer and id(optimizer) in self._other_optimizers):
            self.pacer = weakref.ref(optimizer)
        elif pacer is not optimizer:
            self._other_optimizers.append(id(optimizer))
            return False
        self._other_optimizers.clear()
        return True

    def clip(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Record the norm that `clip_grad_norm_` returns."""
        norm = original(*args, **kwargs)
        follower = self.follower()
        if follower is not None and follower.step is not None:
            with follower.contain_errors():
                follower.facts["grad_norm"] = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return norm

    # ── data and communication ──

    def fetch(self, original: Callable[[Any], Any], batches: Any) -> Any:
        """Fetch a batch from a DataLoader's iterator, and record the wait."""
        follower = self.follower()
        if follower is None:
            return original(batches)
        slots = follower.run.slots
        if slots is None:
            return original(batches)
        return slots.waits.time(id(batches), lambda: original(batches))

    def wrap_ddp(self, original: Callable[..., None], model: Any, *args: Any, **kwargs: Any) -> None:
        """Initialize a DistributedDataParallel, and record its all-reduce."""
        original(model, *args, **kwargs)
        follower = self.follower()
        if follower is not None:
            follower.run.collectives(model)


HOOKS: Final = Hooks()
_WRAPPED: Final = (
    (torch.autograd, "backward", "backward"),
    (torch.nn.utils, "clip_grad_norm_", "clip"),
    (torch.nn.Module, "compile", "compile"),
    (torch.amp.GradScaler, "scale", "scale"),
    (getattr(dataloader, "_BaseDataLoaderIter", None), "__next__", "fetch"),
    (torch.nn.parallel.DistributedDataParallel, "__init__", "wrap_ddp"),
)
"""Functions without a hook in torch: owner, name, and the method of `Hooks` that wraps them."""


def install() -> None:
    """Install the hooks, unless they are, and search for the model that is being trained."""
    for owner, name, method in _WRAPPED:
        PATCHES.put(owner, name, functools.partial(_wrap_method, getattr(HOOKS, method)))
    HOOKS.hook_optimizers()
    # Hooks are called twice around a compiled module, as the warning says. That does no harm here.
    warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks", UserWarning)
    HOOKS.search()
    PATCHES.undo_by(HOOKS.remove)


def _wrap_method(method: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call_method(*args: Any, **kwargs: Any) -> Any:
        if not FOLLOWED or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        return method(original, *args, **kwargs)

    return call_method


def _is_training(module: Any) -> bool:
    """Whether the call of a module is part of training."""
    # Some programs set wrappers such as DistributedDataParallel to training mode, others only the model within.
    is_training = bool(module.training) or any(child.training for child in module.children())
    return is_training and torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
