"""What the prefix cache finds, and what it must never find."""

from __future__ import annotations

from hashlib import blake2b

import pytest

from core.scheduling.prefix import DIGEST, TOKEN, PrefixKeys, root
from core.testing.modelled_worker import alone
from tests.small_engine import NO_STOP, SmallEngine, make_request, share

PAGE = 4


def keys(tokens: list[int], salt: str | None = None, page_size: int = PAGE) -> list[bytes]:
    request = make_request("k", tokens, salt=salt)
    return PrefixKeys(salt, page_size).of(request, 0, len(tokens) // page_size)


def test_equal_beginnings_have_equal_keys_and_others_do_not():
    one, other = keys([1, 2, 3, 4, 5, 6, 7, 8]), keys([1, 2, 3, 4, 5, 6, 7, 9])
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_a_page_after_another_beginning_has_another_key():
    assert keys([1, 2, 3, 4, 5, 6, 7, 8])[1] != keys([9, 2, 3, 4, 5, 6, 7, 8])[1]


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_tokens_that_read_alike_in_other_groups_have_other_keys(page_size: int):
    """[1, 23] and [12, 3], or 256 and two bytes, must not meet."""
    sequences = [[1, 23, 0, 0], [12, 3, 0, 0], [1, 2, 3, 0], [256, 0, 0, 0], [0, 1, 0, 0]]
    last = [keys(s, page_size=page_size)[-1] for s in sequences]
    assert len(set(last)) == len(sequences)


def test_salts_are_apart_from_each_other_and_from_none():
    salts = [None, "", "x", "none", "None", "0", "\0", "text", "\udc80"]
    assert len({keys([1, 2, 3, 4], salt)[0] for salt in salts}) == len(salts)


def test_a_salt_that_reads_like_a_page_is_not_that_page():
    salt = "s" * (DIGEST + PAGE * TOKEN)
    page = blake2b(salt.encode(), digest_size=DIGEST).digest()
    assert root(salt) != page


def test_keys_grow_with_the_output_and_do_not_depend_on_when_they_were_made():
    request = make_request("k", [1, 2, 3, 4, 5, 6])
    early = PrefixKeys(None, PAGE)
    assert early.of(request, 0, 1) == keys([1, 2, 3, 4])
    request.output += [7, 8, 9, 10, 11, 12]
    assert early.of(request, 0, 3) == keys(list(range(1, 13)))


@pytest.mark.parametrize("pages", [1, 2, 5])
@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_second_run_of_a_prompt_computes_at_least_one_token(pages: int, more: int, depth: int):
    size = pages * PAGE + more
    engine = SmallEngine(depth=depth)
    prompt = [(7 * position) % 5 for position in range(size)]
    cold, warm = (make_request(name, prompt) for name in ("cold", "warm"))
    engine.add(cold)
    engine.run()
    engine.add(warm)
    plans = engine.run()
    assert warm.cached == (size - 1) // PAGE * PAGE
    assert share(plans[0], warm) == size - warm.cached >= 1
    assert cold.output == warm.output == alone(warm)[0]


def test_requests_of_one_step_share_what_the_first_of_them_computes():
    engine = SmallEngine()
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    first, second, third = (make_request(name, prompt) for name in "abc")
    engine.add(first, second, third)
    plan = engine.step()
    assert [share(plan, r) for r in (first, second, third)] == [10, 2, 2]
    assert first.pages[:2] == second.pages[:2] == third.pages[:2]
    engine.run()
    assert first.output == second.output == third.output == alone(first)[0]


def test_a_prompt_that_is_being_computed_gives_what_is_already_planned():
    engine = SmallEngine(max_num_batched_tokens=10)
    prompt = list(range(20))
    first, second = make_request("a", prompt), make_request("b", prompt)
    engine.add(first)
    engine.step()
    engine.add(second)
    engine.run()
    # 10 tokens of the first step, and the rest of the first request in the second one
    assert second.cached == 16
    assert first.output == second.output


def test_a_follow_up_finds_the_answer_too():
    engine = SmallEngine()
    first = make_request("a", list(range(6)), new=9)
    engine.add(first)
    engine.run()
    follow_up = make_request("b", [*first.prompt, *first.output, 3, 1])
    engine.add(follow_up)
    engine.run()
    # 15 tokens, of which the last was never computed
    assert follow_up.cached == 12
    assert follow_up.output == alone(follow_up)[0]


def test_the_token_that_stops_a_request_is_found_when_its_step_was_planned():
    """At depth 1 the step after the stop was on its way, so even the stop token was computed."""
    engine = SmallEngine(depth=1)
    base = make_request("base", [3, 3, 3, 3, 3], new=3)
    output = alone(base)[0]
    assert len(set(output)) == 3, "choose a prompt with three different ids"
    first = make_request("a", base.prompt, new=9, stop_ids=frozenset(output[2:3]))
    engine.add(first)
    engine.run()
    assert first.finish_reason == "stop"
    follow_up = make_request("b", [*first.prompt, *first.output, 1])
    engine.add(follow_up)
    engine.run()
    assert follow_up.cached == 8
    assert follow_up.output == alone(follow_up)[0]


def test_other_salts_do_not_hit():
    engine = SmallEngine()
    requests = [make_request(str(s), list(range(12)), salt=s) for s in (None, "", "x", "y")]
    for request in requests:
        engine.add(request)
        engine.run()
    assert [r.cached for r in requests] == [0, 0, 0, 0]
    again = make_request("again", list(range(12)), salt="x")
    engine.add(again)
    engine.run()
    assert again.cached == 8
    assert again.output == requests[2].output


def test_prompt_logprobs_take_no_hits_but_give_them():
    engine = SmallEngine()
    asking = [make_request(n, list(range(12)), prompt_logprobs=1) for n in "ab"]
    engine.add(*asking)
    engine.run()
    assert [r.cached for r in asking] == [0, 0]
    assert engine.scheduler.statistics()["prefix_queries"] == 0
    other = make_request("c", list(range(12)))
    engine.add(other)
    engine.run()
    assert other.cached == 8


def test_equal_prompts_computed_at_the_same_time_keep_one_key():
    engine = SmallEngine()
    first, second = (make_request(n, list(range(8)), prompt_logprobs=1) for n in "ab")
    engine.add(first, second)
    engine.run()
    assert first.output == second.output
    numbers = engine.scheduler.statistics()
    # each filled two pages, and half of another
    assert (numbers["pages_cached"], numbers["pages_owned"]) == (2, 0)


def test_without_prefix_cache_nothing_is_kept():
    engine = SmallEngine(prefix_cache=False)
    for name in "ab":
        engine.add(make_request(name, list(range(12))))
        engine.run()
    numbers = engine.scheduler.statistics()
    assert (numbers["prefix_hits"], numbers["pages_cached"]) == (0, 0)
    assert numbers["pages_free"] == numbers["pages_total"]


def test_statistics_count_tokens():
    engine = SmallEngine()
    for name in "ab":
        engine.add(make_request(name, list(range(10))))
        engine.run()
    numbers = engine.scheduler.statistics()
    assert (numbers["prefix_queries"], numbers["prefix_hits"]) == (20, 8)


def test_the_beginning_of_a_chain_outlives_its_end():
    engine = SmallEngine(pages=8)
    engine.add(make_request("a", list(range(24)), new=1))
    engine.run()
    engine.add(make_request("b", 16, new=1))  # two pages were free, so it takes two of the six
    engine.run()
    assert engine.scheduler.statistics()["prefix_evictions"] == 2
    again = make_request("again", list(range(24)), new=1)
    engine.add(again)
    engine.run()
    assert again.cached == 16


def test_reset_forgets_what_ran():
    engine = SmallEngine()
    for name in "ab":
        request = make_request(name, list(range(12)))
        engine.add(request)
        engine.run()
        assert request.cached == 0
        engine.scheduler.reset_prefix_cache()


def test_what_runs_during_a_reset_is_not_offered_later():
    """Its pages may be made with old weights, in part; those of a request after it are not."""
    engine = SmallEngine()
    during = make_request("during", list(range(12)), new=20)
    engine.add(during)
    engine.step()
    engine.step()
    engine.scheduler.reset_prefix_cache()
    engine.run()
    after = make_request("after", during.prompt, new=1)
    engine.add(after)
    engine.run()
    assert after.cached == 0
    follow_up = make_request("follow-up", during.prompt + during.output)
    engine.add(follow_up)
    engine.run()
    assert follow_up.cached == 12


@pytest.mark.parametrize("page_size", [1, 2, 3, 5, 7, 100])
def test_any_page_size_works(page_size: int):
    engine = SmallEngine(page_size=page_size, pages=64)
    first, second = (make_request(n, list(range(13)), stop_ids=NO_STOP) for n in "ab")
    engine.add(first)
    engine.run()
    engine.add(second)
    engine.run()
    assert second.cached == 12 // page_size * page_size
    assert first.output == second.output == alone(first)[0]
