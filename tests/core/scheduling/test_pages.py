"""The page pool: classes of pages, sharing, eviction order, and its cost."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from core.scheduling.pages import PagePool


def key(number: int) -> bytes:
    return number.to_bytes(8, "little")


def filled(pool: PagePool, numbers: list[int], step: int = 0) -> list[int]:
    """Owned pages with the keys of these numbers."""
    pages = pool.take(len(numbers))
    for page, number in zip(pages, numbers, strict=True):
        pool.offer(page, key(number), step)
    return pages


def test_taken_pages_are_different_and_owned():
    pool = PagePool(6)
    pages = pool.take(2) + pool.take(3)
    assert len(set(pages)) == 5
    assert (pool.owned, pool.free, pool.cached, pool.available) == (5, 1, 0, 1)


def test_a_page_without_a_key_becomes_free_and_one_with_a_key_cached():
    pool = PagePool(4)
    plain, keyed = pool.take(1), filled(pool, [7])
    pool.release(plain + keyed)
    assert (pool.owned, pool.free, pool.cached) == (0, 3, 1)
    assert pool.find([key(7)]) == keyed


def test_a_shared_page_is_owned_until_the_last_holder_lets_go():
    pool = PagePool(4)
    pages = filled(pool, [7])
    pool.share(pages)
    pool.release(pages)
    assert pool.owned == 1
    pool.release(pages)
    assert (pool.owned, pool.cached) == (0, 1)


def test_sharing_a_cached_page_makes_it_owned():
    pool = PagePool(2)
    pages = filled(pool, [7])
    pool.release(pages)
    assert pool.unheld(pages) == 1
    pool.share(pages)
    assert (pool.unheld(pages), pool.owned, pool.available) == (0, 1, 1)


def test_free_pages_are_given_before_cached_ones_are_evicted():
    pool = PagePool(3)
    pool.release(filled(pool, [1]))
    pool.take(2)
    assert pool.evictions == 0
    pool.take(1)
    assert pool.evictions == 1
    assert pool.find([key(1)]) == []


def test_the_page_let_go_the_longest_ago_is_evicted_first():
    pool = PagePool(3)
    old, used_again, young = (filled(pool, [n]) for n in (1, 2, 3))
    for pages in (old, used_again, young):
        pool.release(pages)
    pool.share(used_again)
    pool.release(used_again)
    assert pool.take(1) == old
    assert pool.take(1) == young


def test_the_end_of_a_request_is_evicted_before_its_beginning():
    pool = PagePool(3)
    pages = filled(pool, [1, 2, 3])
    pool.release(pages)
    pool.take(1)
    assert pool.find([key(1), key(2), key(3)]) == pages[:2]


def test_equal_content_keeps_both_pages_and_one_key():
    pool = PagePool(4)
    first, second = filled(pool, [5]), filled(pool, [5])
    assert pool.find([key(5)]) == first
    pool.release(second)
    assert (pool.free, pool.cached, pool.owned) == (3, 0, 1)
    pool.release(first)
    assert pool.find([key(5)]) == first


def test_find_stops_at_the_first_unknown_key():
    pool = PagePool(4)
    pages = filled(pool, [1, 3])
    assert pool.find([key(1), key(2), key(3)]) == pages[:1]


def test_a_forgotten_page_is_not_found_but_stays_with_its_holder():
    pool = PagePool(4)
    held, cached = filled(pool, [1]), filled(pool, [2])
    pool.release(cached)
    pool.forget(held + cached)
    assert pool.find([key(1)]) == pool.find([key(2)]) == []
    assert (pool.owned, pool.free, pool.cached) == (1, 3, 0)
    pool.check([held])


def test_forgetting_since_a_step_spares_older_content():
    pool = PagePool(6)
    old, late = filled(pool, [1, 2], step=3), filled(pool, [3, 4], step=4)
    pool.release(late)
    assert pool.forget_since(4) == set(late)
    assert pool.find([key(1), key(2)]) == old
    assert pool.find([key(3)]) == []
    assert pool.forget_since(4) == set()


def test_reset_forgets_everything():
    pool = PagePool(4)
    held, cached = filled(pool, [1]), filled(pool, [2])
    pool.release(cached)
    pool.reset()
    assert (pool.owned, pool.free, pool.cached) == (1, 3, 0)
    assert pool.find([key(1)]) == []
    pool.check([held])


def test_more_pages_than_there_are_is_an_error():
    with pytest.raises(AssertionError, match="3 pages wanted, 2 available"):
        PagePool(2).take(3)


def test_check_notices_a_lost_page_and_a_page_in_two_classes():
    pool = PagePool(3)
    pages = pool.take(2)
    with pytest.raises(AssertionError, match="holders"):
        pool.check([pages[:1]])
    pool._free.append(pages[0])
    with pytest.raises(AssertionError):
        pool.check([pages])


@pytest.mark.parametrize("seed", range(20))
def test_the_pool_agrees_with_a_plain_model(seed: int):
    """The model knows holders and the key of each page, and searches where the pool looks up."""
    rng = random.Random(seed)
    total = rng.randint(1, 12)
    pool, held = PagePool(total), list[list[int]]()
    holders: Counter[int] = Counter()
    content: dict[int, int] = {}  # page -> number of its key
    for step in range(400):
        action = rng.random()
        if action < 0.4 and pool.available:
            pages = pool.take(rng.randint(1, pool.available))
            assert all(holders[p] == 0 for p in pages)
            for page in pages:
                content.pop(page, None)
            held.append(pages)
            holders.update(pages)
        elif action < 0.7 and held:
            pages = held.pop(rng.randrange(len(held)))
            pool.release(pages)
            holders.subtract(pages)
        elif action < 0.85 and held:
            page, number = rng.choice(rng.choice(held)), rng.randint(0, 8)
            if number not in content.values() and page not in content:
                content[page] = number
            pool.offer(page, key(number), step)
        elif action < 0.98:
            number = rng.randint(0, 8)
            expected = [page for page, n in content.items() if n == number]
            assert pool.find([key(number)]) == expected
            if expected:
                pool.share(expected)
                held.append(expected)
                holders.update(expected)
        else:
            chosen = rng.sample(range(total), rng.randint(0, total))
            pool.forget(chosen)
            for page in chosen:
                content.pop(page, None)
        pool.check(held)
        assert pool.owned == sum(count > 0 for count in holders.values())
        assert pool.cached == sum(holders[page] == 0 for page in content)


def test_a_million_operations_lose_nothing():
    rng = random.Random(0)
    pool, held = PagePool(500), list[list[int]]()
    operations = serial = 0
    while operations < 1_000_000:
        size = rng.randint(1, 40)
        if size <= pool.available and (rng.random() < 0.5 or not held):
            pages = pool.take(size)
            for page in pages[: size // 2]:
                serial += 1
                pool.offer(page, key(serial % 3000), serial)
            held.append(pages)
        else:
            pages = held.pop(rng.randrange(len(held)))
            pool.release(pages)
        operations += len(pages)
    pool.check(held)
    for pages in held:
        pool.release(pages)
    pool.check([])
    assert pool.free + pool.cached == 500
    assert len(pool._key_of) == len(pool._page_of) == pool.cached
    assert pool.evictions > 0


@pytest.mark.parametrize("keyed", [False, True])
def test_freeing_a_page_takes_no_search(keyed: bool):
    count = 20_000
    pool = PagePool(2 * count)
    pages = filled(pool, list(range(count))) if keyed else pool.take(count)
    random.Random(1).shuffle(pages)
    start = time.perf_counter()
    pool.release(pages)
    # 10 ms; looking for each page in the list of free ones would take seconds
    assert time.perf_counter() - start < 0.5
