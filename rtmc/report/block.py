"""The page's data as the text of one HTML script element, small enough.

Plain JSON where everything fits with no text cut; else JSON, deflated and in base64, which the page's script unpacks,
its texts cut as far as they must be (texts.py), unless they are to stay whole.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rtmc.report.texts import TextStore, script_json

# Bytes of the element for each thousand rollouts, begun ones counted as whole. The page is to stay under 5 MB for the
# first thousand; its script, style and template take about 0.1 MB, examples of collisions less.
BLOCK_BYTES = 4_700_000
_TRIES = 5


@dataclass(frozen=True)
class Block:
    """type, text   of the script element; the text has no `<`
    size         bytes of the JSON
    texts, cut   how many texts there are; how many of them were cut
    """

    type: str
    text: str
    size: int
    texts: int
    cut: int


def data_block(data: dict[str, Any], store: TextStore, told: Collection[int] = (), limit: int | None = None) -> Block:
    """`data` with the texts of `store` as `texts`, and as `lengths` the whole length of each that was cut, by number.

    told    numbers of texts that keep more than others
    limit   bytes of the element's text, 4.7 million for each thousand rollouts by default. It is passed only by texts
            that are to stay whole, or where even texts of 24 characters do not fit
    """
    if limit is None:
        limit = BLOCK_BYTES * max(1, math.ceil(len(data["rollouts"]["id"]) / 1000))
    frame = len(script_json(data).encode())
    if frame + store.sizes().sum() + 3 * len(store.texts) < limit:
        text, cut = _json(data, store, store.texts)
        if len(text) < limit:
            return Block("application/json", text.decode(), len(text), len(store.texts), cut)
    # How far the texts deflate is seen only when they are cut, so the budget is set anew from what came out.
    budget, best = 2.5 * limit, None
    for _ in range(_TRIES):
        texts = store.fitted(budget, told)
        whole, cut = _json(data, store, texts)
        packed = _packed(whole)
        best = Block("application/x-deflate", packed, len(whole), len(texts), cut)
        if len(packed) <= limit and (not cut or len(packed) > 0.85 * limit or texts == store.texts):
            break
        budget *= 0.96 * limit / len(packed)
    assert best is not None
    return best


def _json(data: dict[str, Any], store: TextStore, texts: list[str]) -> tuple[bytes, int]:
    pairs = zip(texts, store.lengths, strict=True)
    lengths = {str(at): whole for at, (text, whole) in enumerate(pairs) if len(text) < whole}
    return script_json(data | {"texts": texts, "lengths": lengths}).encode(), len(lengths)


def _packed(text: bytes) -> str:
    # Raw deflate: no header, whose time or checksum the page would have to skip.
    packer = zlib.compressobj(level=6, wbits=-15)
    return base64.b64encode(packer.compress(text) + packer.flush()).decode()
