"""The noise: its documented integers, its independence, and draws that follow the softmax."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.sampling import noise

WORD = 2**32
REJECT = 5.0  # standard deviations of chi-square; the seeds are fixed, so nothing here is random


def from_all(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    keys: torch.Tensor,
    floor: torch.Tensor | None = None,
) -> torch.Tensor:
    """`draw` as an accelerator does it."""
    return noise.drawn_from_all(logits, temperature, keys, floor, 0)[0]


def mix(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D % WORD
    x ^= x >> 15
    x = x * 0x846CA68B % WORD
    return x ^ x >> 16


def bits_by_hand(seed: int, position: int, token: int) -> int:
    """The module's documentation, in Python's integers."""
    low, high = seed % WORD, seed // WORD % WORD
    k0 = mix(mix(mix(low ^ 0x9E3779B9) ^ high) ^ position)
    k1 = mix(mix(mix(high ^ 0x85EBCA6B) ^ low) ^ position)
    x = (token ^ k0) * 0xED5AD4BB % WORD ^ k1
    x ^= x >> 15
    x = x * 0xAC4C1B51 % WORD
    x ^= x >> 15
    x = x * 0x31848BAB % WORD
    signed = x - WORD if x >= WORD // 2 else x
    return signed ^ signed >> 16


def keys_of(seeds: list[int], positions: torch.Tensor, device: str = "cpu") -> torch.Tensor:
    streams = torch.tensor([noise.stream(seed) for seed in seeds], dtype=torch.int32)
    return noise.keys(streams.to(device), positions.to(device))


def bits_of(seeds: list[int], positions: torch.Tensor, token: int) -> torch.Tensor:
    keys = keys_of(seeds, positions)
    return noise.bits(torch.tensor(token, dtype=torch.int32), keys[:, 0], keys[:, 1])


def deviation(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """Chi-square of counts, as standard deviations from what is expected."""
    freedom = counts.size - 1
    chi = ((counts - expected) ** 2 / expected).sum()
    return float((chi - freedom) / math.sqrt(2 * freedom))


def joint(a: torch.Tensor, b: torch.Tensor) -> float:
    """How far pairs of 31-bit numbers are from uniform, in a 64 x 64 table."""
    cells = ((a >> 25).long() * 64 + (b >> 25)).numpy()
    return deviation(np.bincount(cells, minlength=4096), len(a) / 4096)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_integers_are_the_documented_ones(seed: int, position: int, token: int) -> None:
    found = bits_of([seed], torch.tensor([position]), token)
    assert found.tolist() == [bits_by_hand(seed, position, token)]


def test_known_answers(device: str) -> None:
    """Numbers for whoever writes the same noise as a kernel."""
    tokens = torch.tensor([0, 1, 2, 151935], dtype=torch.int32, device=device)
    key = keys_of([0x0123456789ABCDEF], torch.tensor([1000]), device)
    assert key.tolist() == [[163094039, 1455987683]]
    found = noise.bits(tokens, key[:, :1], key[:, 1:])
    assert found.tolist() == [[2017094480, 876386132, 510754767, 1262852279]]
    torch.testing.assert_close(
        noise.gumbel(tokens, key[:, :1], key[:, 1:]).cpu(),
        torch.tensor([[-1.030165, 0.64547, 1.303436, 0.120045]]),
    )


@pytest.mark.parametrize(("bits", "limit"), [(0, 22.19), (2**31 - 1, -2.82)])
def test_noise_is_finite_at_both_ends(
    monkeypatch: pytest.MonkeyPatch, bits: int, limit: float
) -> None:
    monkeypatch.setattr(noise, "bits", lambda *_: torch.tensor([bits], dtype=torch.int32))
    value = float(noise.gumbel(torch.tensor([0], dtype=torch.int32), 0, 0))
    assert value == pytest.approx(limit, abs=0.01)
    assert noise.RANGE > 22.19 + 2.82


@pytest.mark.parametrize("other", [1, 2, 3, 7, 2**15, 2**17, 0x10001, 0x30003])
def test_two_tokens_are_independent(other: int) -> None:
    """Two multiplications instead of three fail this for 3, 7 and 0x30003."""
    generator = torch.Generator().manual_seed(other)
    keys = torch.randint(-(2**31), 2**31, (2**20, 2), generator=generator).int()
    token = torch.tensor(5, dtype=torch.int32)
    a = noise.bits(token, keys[:, 0], keys[:, 1])
    b = noise.bits(token ^ other, keys[:, 0], keys[:, 1])
    assert abs(joint(a, b)) < REJECT
    apart = ((a.long() - b) % 2**31 >> 19).numpy()
    assert abs(deviation(np.bincount(apart, minlength=4096), len(a) / 4096)) < REJECT


def test_consecutive_positions_are_independent() -> None:
    positions = torch.arange(2**18)
    for seed in (0, 1, 42, 2**63):
        a, b = (bits_of([seed], positions + shift, 7) for shift in (0, 1))
        assert abs(joint(a, b)) < REJECT


def test_consecutive_seeds_are_independent() -> None:
    """The engine numbers the `n` samples of a prompt by consecutive seeds."""
    here = torch.tensor([11])
    for start in (0, 2**32 - 1000, 2**60):
        found = bits_of(list(range(start, start + 40001)), here, 7)
        assert abs(joint(found[:-1], found[1:])) < REJECT


def test_all_64_bits_of_a_seed_count() -> None:
    seeds = [0, *(1 << bit for bit in range(64))]
    assert len(set(map(noise.stream, seeds))) == 65


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([0.0, -1.0, -2.0, -5.0, -9.0, -math.inf])
    count = 2**20
    keys = keys_of([3], torch.arange(count))
    drawn = from_all(logits.expand(count, -1), torch.full((count,), 0.8), keys)
    counts = np.bincount(drawn.numpy(), minlength=6)
    expected = (logits.double() / 0.8).softmax(-1).numpy() * count
    assert counts[5] == 0
    assert 5 < expected[4] < 50  # a probability of a hundred-thousandth
    assert abs(deviation(counts[:5], expected[:5])) < REJECT


def test_many_unlikely_tokens_have_their_share_together() -> None:
    """10,000 tokens of a millionth each share a hundredth."""
    logits = torch.full((10001,), math.log(1e-6))
    logits[0] = math.log(0.99)
    count = 10000
    keys = keys_of([9], torch.arange(count))
    drawn = noise.draw(logits.expand(count, -1), torch.ones(count), keys)
    rare = int((drawn > 0).sum())
    assert abs(rare - count * 0.01) < REJECT * math.sqrt(count * 0.01)
    assert len(drawn[drawn > 0].unique()) > 0.98 * rare


@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.05, 0.3, 1.0, 4.0, 30.0]),
    st.sampled_from([0.0, 0.01, 0.7, 3.0]),
    st.sampled_from([None, 0.0, 0.7, 4.0]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_leaving_out_hopeless_tokens_changes_nothing(
    seed: int, spread: float, temperature: float, floor: float | None, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(4, 3000, generator=generator) * spread).to(dtype)
    keys = keys_of([seed] * 4, torch.arange(4))
    heat = torch.full((4,), temperature)
    floors = None if floor is None else logits.float().amax(-1) - spread * floor
    few = noise.draw(logits, heat, keys, floors)
    assert few.tolist() == from_all(logits, heat, keys, floors).tolist()


def test_a_row_draws_the_same_alone_and_among_others(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(12, 500, generator=generator) * 2).to(device)
    heat = torch.tensor([0.0, 0.5, 1.0, 2.0] * 3, device=device)
    keys = keys_of(list(range(12)), torch.arange(12), device)
    together = noise.draw(logits, heat, keys)
    order = torch.randperm(12, generator=generator).to(device)
    assert noise.draw(logits[order], heat[order], keys[order]).tolist() == together[order].tolist()
    for s in range(12):
        one = slice(s, s + 1)
        assert noise.draw(logits[one], heat[one], keys[one]).tolist() == together[one].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ties_go_to_the_lowest_id(dtype: torch.dtype, device: str) -> None:
    logits = torch.zeros(3, 100, dtype=dtype, device=device)
    logits[0, 40:60] = 2
    logits[1, 99] = logits[1, 7] = 3
    keys = keys_of([1, 2, 3], torch.arange(3), device)
    cold = torch.zeros(3, device=device)
    assert noise.argmax(logits).tolist() == [40, 7, 0]
    assert noise.draw(logits, cold, keys).tolist() == [40, 7, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_hope_gives_a_token_that_is_not_finite(temperature: float) -> None:
    logits = torch.zeros(3, 10)
    logits[0] = -math.inf
    logits[1, 4] = math.nan
    keys = keys_of([1, 2, 3], torch.arange(3))
    heat = torch.full((3,), temperature)
    for drawn in (noise.draw(logits, heat, keys), from_all(logits, heat, keys)):
        value = logits.gather(1, drawn[:, None])[:, 0]
        assert value.isfinite().tolist() == [False, False, True]
