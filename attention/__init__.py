"""Attention as one operation, computed in several ways, with a proven bound on the error of each.

`standard_attention` materialises scores and probabilities and is the specification; `flash_attention` goes tile by tile
with an online softmax; `error_bound` says how far from the exact result either may be, element by element. Tensors are
(batch, heads, length, head_dim); fewer key and value heads than query heads are shared by groups of queries (GQA).

What holds for every implementation here: the result is `AttentionResult(out, lse)`, `lse` being the natural logarithm
of the sum of exponentials; a query that may see no key gets out 0 and lse -inf; a key a query may not see contributes
nothing to it, whatever it holds, NaN included; the alignment of a causal mask is declared where the lengths differ.

>>> import torch, attention as A
>>> q, k, v = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
>>> out, lse = A.flash_attention(q, k, v, mask=A.causal("bottom_right"))
>>> exact = A.standard_attention(q, k, v, mask=A.causal("bottom_right"), precision=torch.float64)
>>> bound = A.error_bound(q, k, v, mask=A.causal("bottom_right")).certain
>>> bool(((out - exact.out).abs() <= bound.out).all()), bool(((lse - exact.lse).abs() <= bound.lse).all())
(True, True)
"""

from attention.bounds import Bounds, ErrorBound, error_bound
from attention.flash import flash_attention
from attention.masks import Mask, causal, full
from attention.reference import AttentionResult, standard_attention

__all__ = [
    "AttentionResult",
    "Bounds",
    "ErrorBound",
    "Mask",
    "causal",
    "error_bound",
    "flash_attention",
    "full",
    "standard_attention",
]
