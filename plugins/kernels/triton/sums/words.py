"""How numbers go from rank to rank: each word is its own message, and says itself that it is there.

Every program (block) of a collective has places of its own in each rank's memory, one for each
sender, and two of them in turn: [blocks, 2, ranks, AREA bytes]. A place is EMPTY where nothing has
come: -0.0, which nobody sends. A sender writes its numbers into its place at every other rank; a
receiver reads until no word is EMPTY, and leaves EMPTY behind. So there are no flags, no fences,
and no order between words that anybody relies on. (NCCL's LL protocol, and TensorRT-LLM's Lamport
all-reduce, which uses this value as well.)

Why two places in turn are enough: a rank writes for call t + 2 when its call t + 1 has ended, which
has taken words that the receiver sent in its own call t + 1; that began when the receiver's call t
had ended, which had emptied the place. And with one, a fast rank would write for t + 1 over what a
slow one has not read for t. Kernels of a rank end one after the other; blocks count their own turns
and meet the blocks of the same number, so calls of any sizes may follow each other.
"""

from __future__ import annotations

import triton
import triton.language as tl

EMPTY = tl.constexpr(-32768)  # core.parallel.peers.EMPTY
EMPTY_PAIR = tl.constexpr(-32768 - (1 << 31) + (1 << 16))  # two of them, as a word of 32 bits
# Between looks at the host's memory: some milliseconds. Warps look one after the other, each for a
# microsecond. Ranks that look while they wait for each other would keep each other waiting, and a
# sum would take a hundred times as long.
POLLS = tl.constexpr(1 << 14)


@triton.jit
def to_words(x):
    """Numbers of 2 or 4 bytes as integers of the same bits, except that none is EMPTY."""
    if x.dtype.primitive_bitwidth == 16:
        words = x.to(tl.int16, bitcast=True)
        return tl.where(words == EMPTY, 0, words).to(tl.int16)
    else:
        words = x.to(tl.int32, bitcast=True)
        return tl.where(words == EMPTY_PAIR, 0, words).to(tl.int32)


@triton.jit
def place(addresses, rank, block, turn, source, RANKS: tl.constexpr, AREA: tl.constexpr):
    """The address, int64, of what `source` sends to a block of `rank`."""
    base = tl.load(addresses + rank)
    box = (block.to(tl.int64) * 2 + (turn & 1)) * RANKS + source
    return base + box * AREA


@triton.jit
def pointers(address, at, BITS: tl.constexpr):
    """Pointers to the words at `at` behind an address; areas begin at multiples of 16 bytes."""
    if BITS == 16:
        return tl.multiple_of(address.to(tl.pointer_type(tl.int16)), 16) + at
    else:
        return tl.multiple_of(address.to(tl.pointer_type(tl.int32)), 16) + at


@triton.jit
def send(words, address, at, here):
    """Write words to the places `at` behind an address, where they are `here`."""
    tl.store(pointers(address, at, words.dtype.primitive_bitwidth), words, mask=here)


@triton.jit
def take(address, at, here, stop, BITS: tl.constexpr):
    """Wait for the words at `at` behind an address, take them, and leave EMPTY. 0 where not `here`.

    Nothing is waited for once a rank is said to be gone; what is returned is then nonsense.
    """
    to = pointers(address, at, BITS)
    words = tl.load(to, mask=here, other=0, volatile=True)
    if BITS == 16:
        empty = tl.full(words.shape, EMPTY, tl.int16)
    else:
        empty = tl.full(words.shape, EMPTY_PAIR, tl.int32)
    missing = tl.max((words == empty).to(tl.int32), 0)
    polls = 0
    while missing > 0:
        words = tl.load(to, mask=here, other=0, volatile=True)
        missing = tl.max((words == empty).to(tl.int32), 0)
        polls += 1
        if polls % POLLS == 0:
            missing = tl.where(tl.load(stop, volatile=True) == 0, missing, 0)
    # behind the barrier of the last `max`: every thread has read
    tl.store(to, empty, mask=here)
    return words


@triton.jit
def total(
    x,  # [BLOCK] this rank's part
    words,  # the same, as `to_words` gives them
    addresses,
    block,
    turn,
    at,  # [BLOCK] places within an area
    here,
    stop,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    AREA: tl.constexpr,
):
    """The sum of what all ranks have sent to this block, in rank order, float32 [BLOCK]."""
    acc = tl.zeros(x.shape, tl.float32)
    for r in tl.static_range(RANKS):
        if r == RANK:  # as the others see it
            acc += words.to(x.dtype, bitcast=True).to(tl.float32)
        else:
            mine = place(addresses, RANK, block, turn, r, RANKS, AREA)
            part = take(mine, at, here, stop, x.dtype.primitive_bitwidth)
            acc += part.to(x.dtype, bitcast=True).to(tl.float32)
    return acc
