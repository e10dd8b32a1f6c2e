"""Say why the numbers of a torch tensor cannot be read: by the tensor's own attributes, without importing torch."""

from __future__ import annotations

from typing import Any


def tensor_fault(x: Any) -> str:
    """Return what is wrong with where a tensor has its numbers, and what to do; "" for plain memory of a CPU or GPU.

    It is the end of a message that begins with the tensor's name. x: a torch.Tensor.
    """
    if x.is_nested:
        return "is a nested tensor; give images of one size in one dense tensor: torch.stack(x.unbind())"
    if str(x.layout) != "torch.strided":
        return f"is a tensor of layout {x.layout}; give a dense one: x.to_dense()"
    if x.is_quantized:
        return f"is {x.dtype}; give floats: x.dequantize()"
    if x.is_meta:
        return "lies on meta, without numbers; make it on cpu or cuda"
    if not (x.is_cpu or x.is_cuda):
        return f"lies on {x.device}, and kernels run on cpu and cuda; bring it there: x.cpu()"
    kind = type(x)
    if getattr(kind.__torch_dispatch__, "__func__", None) is not None:  # a class method in place of torch's own
        return (
            f"is a {kind.__module__}.{kind.__qualname__}, whose numbers do not lie in plain memory; give a "
            "torch.Tensor that has them"
        )
    return ""
