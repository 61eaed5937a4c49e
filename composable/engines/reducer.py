"""The sums of gradients over processes, by PyTorch's DistributedDataParallel.

DDP gets the parameters that are trained, and a *report*: a further parameter, whose gradient is
what else a step sends, so that a small model needs one message. DDP reduces during the backward
pass of a loss that is `joined`, or in a separate backward pass, after all gradients are computed.

DDP waits for a gradient of each parameter. A parameter without a gradient gets an undefined one at
the end, and contributes 0 to the sum. The last message says which parameters have a gradient on any
process, and the gradients of the others stay None.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from composable._support.devices import from_numbers

Hook: TypeAlias = Callable[[Any, Any], Future[Tensor]]
"""A communication hook of DDP: a function of a state and a `GradBucket`."""

_CARRIERS = (torch.float32, torch.float64)
"""The dtypes of gradients that a report can be sent with."""


class GradientReducer:
    """Sums the gradients of parameters over the processes.

    Args:
        parameters: The parameters, the same on every process, the first layers' first.
        size: The number of values of a report.
        device: The device of the report.
        sparse: Which of them have sparse gradients: these are summed at the end, by gathering their
            rows with gloo, and as dense ones with other backends.
        hook: A communication hook of DDP, and its state. Default: one that sums.
        bucket_cap_mb: The size of a message, in MiB. Default: DDP's.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        size: int,
        device: torch.device,
        *,
        sparse: Sequence[Tensor] = (),
        hook: tuple[Any, Hook] | None = None,
        bucket_cap_mb: float | None = None,
    ) -> None:
        apart = set(map(id, sparse))
        self.parameters, self.sparse, self.size = list(parameters), list(sparse), size
        self._dense = [parameter for parameter in parameters if id(parameter) not in apart]
        kinds = {(tensor.dtype, tensor.device) for tensor in self._dense}
        dtype = self._dense[0].dtype if len(kinds) == 1 else None
        self.carries = hook is None and (not kinds or dtype in _CARRIERS)
        """Whether the report is sent with the gradients."""
        self.report = nn.Parameter(
            torch.zeros(
                size + len(parameters),
                dtype=dtype if self.carries and kinds else torch.float64,
                device=device,
            )
        )
        self.present = [True] * len(parameters)
        """Whether each parameter had a gradient in this process, in the last step."""
        self._unreached: set[int] = set()
        self._joined: Tensor | None = None
        self._hook = self.report.register_hook(self._values)  # type: ignore[no-untyped-call]
        self._report: Callable[[], Tensor] = self._zeros
        self._before: list[Tensor | None] = []
        before = [one.grad for one in self.parameters]  # DDP would move them into its messages
        self._clear()
        # DDP sends the last parameters first.
        held = [self.report, *self._dense] if self.carries else self._dense
        self.ddp = DistributedDataParallel(
            _Held(held),
            init_sync=False,
            gradient_as_bucket_view=True,
            bucket_cap_mb=bucket_cap_mb,
        )
        self._messages = _Messages()
        self.ddp.register_comm_hook(self._messages, _Messages.send)
        self._fix_messages()
        if hook is not None:
            self._messages.state, self._messages.hook = hook
            self._messages.means = dist.get_world_size()
        for parameter, grad in zip(self.parameters, before, strict=True):
            parameter.grad = grad

    @property
    def is_complete(self) -> bool:
        """Whether all messages of a step have been sent."""
        return self._messages.all_sent

    def _fix_messages(self) -> None:
        """Send zeros twice, since DDP divides the parameters into messages by their first order.

        The order of a first step could be another one in a resumed run, whose results would then
        differ in the last bits.
        """
        for _ in range(2):
            self.start(self._zeros)
            joined: Any = self.ddp(self._last)
            for tensor in reversed(self._dense):
                _send_undefined([tensor])
            joined.backward()
            self._clear()

    def close(self) -> None:
        """Stop listening to gradients, also after a step that was not completed."""
        self.ddp._remove_autograd_hooks()  # type: ignore[no-untyped-call]
        self._hook.remove()

    def _zeros(self) -> Tensor:
        return self.report.new_zeros(self.size)

    def _clear(self) -> None:
        for tensor in [*self.parameters, self.report]:
            tensor.grad = None

    def start(self, report: Callable[[], Tensor]) -> None:
        """Begin the last part of a step, before its forward pass.

        Args:
            report: Returns the report. It is called after all other gradients are computed.
        """
        self._messages.all_sent, self._joined, self._report = False, None, report
        # A backward pass goes back in time, so the first operation's gradient comes last.
        self._last: Any = self.report.sum()

    def join(self, loss: Tensor) -> Tensor:
        """Return a loss, with whose backward pass the gradients are sent."""
        self._before = [tensor.grad for tensor in self._dense]
        self._joined = self.ddp(loss + self._last.to(loss.dtype))  # of zeros
        self._last = None
        return self._joined

    def finish(self) -> Tensor | None:
        """Send the remaining gradients after the backward pass, and return the sum of the reports.

        The gradients of the parameters are then the sums. They are None where no process has one.

        Returns:
            The sum of the reports, in float64. None if they are not sent with the gradients: in
            this case, no gradient is None.
        """
        if self._joined is None:
            self.present = self._has_gradients()
            joined = self.ddp(self._last)
            _send_undefined(self._dense)
            joined.backward()
            self._last = None
        elif not self.is_complete:  # DDP waits for parameters without a gradient
            _send_undefined(self._late())
        self._joined, self._before = None, []
        self._sum_sparse()
        report, self.report.grad = self.report.grad, None
        if not self.carries:
            return None
        drop_absent(self.parameters, report[self.size :], self.present)  # type: ignore[index]
        return report[: self.size].double()  # type: ignore[index]

    def _late(self) -> list[Tensor]:
        """Return the parameters of which DDP has not learned in the backward pass.

        It has learned of those that got an undefined gradient there. So the graph is searched when
        a parameter has no gradient for the first time.
        """
        pairs = zip(self._dense, self._before, strict=True)
        unchanged = [tensor for tensor, before in pairs if tensor.grad is before]
        absent = {id(tensor) for tensor in unchanged if tensor.grad is None}
        if new := absent - self._unreached:
            self._unreached |= new - _leaves(self._joined)
        return [one for one in unchanged if one.grad is not None or id(one) in self._unreached]

    def _sum_sparse(self) -> None:
        for one in self.sparse:
            gradient = _no_rows(one) if one.grad is None else one.grad
            total = gradient.coalesce() if _gathers_rows(one) else gradient.to_dense().contiguous()
            dist.all_reduce(total)
            one.grad = total / self._messages.means

    def _values(self, _: Tensor) -> Tensor:
        """Return the gradient of the report, when all others are computed."""
        if self._joined is not None:
            self.present = self._has_gradients()
        values = self._report().to(self.report.dtype)
        return torch.cat([values, flags_like(values, self.present)])

    def _has_gradients(self) -> list[bool]:
        return [parameter.grad is not None for parameter in self.parameters]


def _no_rows(parameter: Tensor) -> Tensor:
    """Return a sparse gradient of zeros."""
    places = torch.empty(1, 0, dtype=torch.long, device=parameter.device)
    values = parameter.detach()[:0]
    return torch.sparse_coo_tensor(places, values, parameter.shape, check_invariants=False)


def _gathers_rows(parameter: Tensor) -> bool:
    """Return whether a sparse gradient can be summed without its other rows."""
    return dist.get_backend() == dist.Backend.GLOO and parameter.dtype in _CARRIERS


class _Messages:
    """Sends the messages of DDP, by a communication hook."""

    def __init__(self) -> None:
        self.state: Any = None
        self.hook: Hook = _sum
        self.all_sent = True
        self.means = 1
        """By what the hook divides the sum over the processes."""

    # DDP checks the annotation of the bucket.
    def send(self, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Send a message."""
        self.all_sent = bucket.is_last()
        return self.hook(self.state, bucket)


def _sum(_: Any, bucket: Any) -> Future[Tensor]:
    """Sum a bucket of gradients, where DDP would compute the mean."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    summed: Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
    return summed


def flags_like(tensor: Tensor, flags: Sequence[bool]) -> Tensor:
    """Return flags as 0 and 1 on the device of a tensor, in its dtype, without waiting for it."""
    if all(flags):
        return tensor.new_ones(len(flags))
    return from_numbers(flags, tensor)


def drop_absent(parameters: Sequence[Tensor], counts: Tensor, present: Sequence[bool]) -> None:
    """Let the gradients be None that no process has.

    Args:
        parameters: The parameters.
        counts: The number of processes that have a gradient of each. It is read only if this one
            lacks one: for a GPU, the host would wait.
        present: Whether this process has a gradient of each.
    """
    if all(present):
        return
    for parameter, count in zip(parameters, counts.tolist(), strict=True):
        if not count:
            parameter.grad = None


def _leaves(tensor: Tensor | None) -> set[int]:
    """Return the ids of the leaves from which a tensor was computed."""
    leaves, seen = set(), set()
    nodes = [] if tensor is None else [tensor.grad_fn]
    while nodes:
        node: Any = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
            leaves.add(id(getattr(node, "variable", None)))
    return leaves


class _Held(nn.Module):
    """The parameters that DDP reduces, whatever modules they are of, if any."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        # Not only instances of nn.Parameter: an optimizer may train any tensor.
        self._parameters.update({str(i): one for i, one in enumerate(tensors)})  # type: ignore[misc]

    def forward(self, loss: Tensor) -> Tensor:
        """Return the loss."""
        return loss


def _send_undefined(parameters: Sequence[Tensor]) -> None:
    """Give parameters undefined gradients, of which their hooks are not called."""
    hooked = [(tensor, name) for tensor in parameters for name in _HOOKS if getattr(tensor, name)]
    held = [getattr(tensor, name) for tensor, name in hooked]
    for tensor, name in hooked:
        setattr(tensor, name, OrderedDict())
    try:
        if parameters:
            _Undefined.apply(*parameters).backward()  # type: ignore[no-untyped-call]
    finally:
        for (tensor, name), hooks in zip(hooked, held, strict=True):
            setattr(tensor, name, hooks)


_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class _Undefined(torch.autograd.Function):
    """A value whose backward pass gives parameters undefined gradients."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.count = len(parameters)
        return torch.zeros((), device=parameters[0].device)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[None, ...]:
        count: int = ctx.count
        return (None,) * count
