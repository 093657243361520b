"""Which layers and positions a request gets, and what it is told when it cannot have them."""

from __future__ import annotations

import pytest
import torch

from core import SamplingParams, UserError
from plugins.observers import probabilities
from plugins.observers.look import look
from plugins.observers.wishes import wish
from tests.plugins.observers.conftest import close, matches, prompts
from tests.tiny import save_tiny, tiny_model

PROMPT = prompts()[-1]
ALL = {"hidden_states": "all", "attentions": "all"}


@pytest.fixture(scope="module")
def llm(engine):
    with engine(observe={"memory": "1MiB"}) as llm:
        yield llm


def answer(llm, prompt=PROMPT, **params):
    params = SamplingParams(**({"temperature": 0, "max_tokens": 6} | params))
    (output,) = llm.generate(prompt_token_ids=[prompt], sampling_params=params, use_tqdm=False)
    return output.outputs[0]


@pytest.mark.parametrize(
    ("positions", "first", "stop"),
    [("all", 0, 28), ("prompt", 0, 23), ("output", 23, 28), ("last", 22, 23)],
)
def test_positions(llm, inside, positions, first, stop) -> None:
    given = {"layers": [-1, 1], "positions": positions}
    found = answer(llm, extra_args={"hidden_states": given, "attentions": given})

    hidden, maps = inside((PROMPT + found.token_ids)[:-1])
    close(found.extras["hidden_states"][1], hidden[1][first:stop])
    close(found.extras["hidden_states"][-1], hidden[3][first:stop])
    close(found.extras["attentions"][1], maps[1][:, first:stop, :stop])
    close(found.extras["attentions"][-1], maps[2][:, first:stop, :stop])


def test_no_more_is_kept_than_was_asked_for(llm) -> None:
    given = {"layers": [1], "positions": "last"}
    params = SamplingParams(max_tokens=8, extra_args={"hidden_states": given, "attentions": given})
    id = llm.engine.add(PROMPT, params)
    for _ in range(4):
        llm.engine.step()
    (held,) = llm.engine.observers._each["observers"]._held.values()

    kept = {key: [at for at, rows in of._pieces for _ in rows] for key, of in held.items()}
    assert kept == {("hidden_states", 1): [22], ("attentions", 1): [22]}
    llm.engine.abort(id)


def test_the_two_may_have_different_wishes(llm) -> None:
    wishes = {"hidden_states": {"layers": 2, "positions": "last"}, "attentions": [0]}
    extras = answer(llm, extra_args=wishes).extras

    assert extras["hidden_states"].keys() == {2}
    assert extras["hidden_states"][2].shape == (1, 64)
    assert extras["attentions"][0].shape == (4, 28, 28)


def test_only_what_was_asked_for_is_there(llm) -> None:
    assert answer(llm, extra_args={"attentions": [0]}).extras.keys() == {"attentions"}
    assert answer(llm, extra_args={"attentions": None}).extras == {}


def test_a_single_token_has_no_output_positions(llm) -> None:
    given = {"layers": [0], "positions": "output"}
    extras = answer(llm, max_tokens=1, extra_args=dict.fromkeys(ALL, given)).extras

    assert extras["hidden_states"][0].shape == (0, 64)
    assert extras["attentions"][0].shape == (4, 0, 0)


def test_each_of_several_answers_has_its_own(llm, inside) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=5, extra_args=ALL)
    (output,) = llm.generate(prompt_token_ids=[PROMPT], sampling_params=params, use_tqdm=False)

    assert len({tuple(a.token_ids) for a in output.outputs}) == 3
    for each in output.outputs:
        matches(each, PROMPT, inside)


def test_of_several_answers_each_ends_where_it_ends(engine, inside) -> None:
    params = SamplingParams(n=4, seed=1, max_tokens=12, extra_args=ALL)
    with engine(executor={"use": "local", "overlap": "on"}) as llm:
        asked = {"prompt_token_ids": [PROMPT], "sampling_params": params, "use_tqdm": False}
        (output,) = llm.generate(**asked)
        params.stop_token_ids = [output.outputs[1].token_ids[4]]
        (output,) = llm.generate(**asked)

    assert len({len(each.token_ids) for each in output.outputs}) > 1
    for each in output.outputs:
        matches(each, PROMPT, inside)


def test_an_answer_that_stops_has_no_position_more(engine, inside) -> None:
    ahead = {"use": "local", "overlap": "on"}
    with engine(executor=ahead) as llm:
        tokens = answer(llm).token_ids
        found = answer(llm, stop_token_ids=[tokens[3]], extra_args=ALL)

        assert found.token_ids == tokens[:4]
        matches(found, PROMPT, inside)
        while llm.engine.busy:  # a step behind the end is still on its way
            llm.engine.step()
        assert llm.engine.observers._each["observers"]._held == {}


def test_a_stop_string_cuts_positions_off(llm, inside) -> None:
    text = answer(llm, max_tokens=12).text
    found = answer(llm, max_tokens=12, stop=[text[2:4]], extra_args=ALL)

    assert found.finish_reason == "stop"
    matches(found, PROMPT, inside)


@pytest.mark.parametrize("queries", [1, 3])
def test_probabilities_are_computed_a_few_queries_at_a_time(
    llm, inside, monkeypatch, queries
) -> None:
    monkeypatch.setattr(probabilities, "TILE", queries * 4 * 4 * len(PROMPT))

    matches(answer(llm, extra_args=ALL), PROMPT, inside)


@pytest.mark.parametrize("chunk", [64, 4])
def test_an_aborted_request_has_what_was_seen_until_then(engine, inside, chunk) -> None:
    with engine(scheduler={"max_num_batched_tokens": chunk}) as llm:
        params = SamplingParams(temperature=0, max_tokens=20, extra_args=ALL)
        id = llm.engine.add(PROMPT, params)
        for _ in range(4):
            llm.engine.step()
        found = llm.engine.abort(id).outputs[0]
        seen = len(found.extras["hidden_states"][0])

        assert seen == (16 if chunk == 4 else 26)
        hidden, maps = inside(PROMPT + found.token_ids)
        for layer, states in found.extras["hidden_states"].items():
            close(states, hidden[layer][:seen])
        for layer, weights in found.extras["attentions"].items():
            close(weights, maps[layer][:, :seen, :seen])
        while llm.engine.busy:
            llm.engine.step()
        assert llm.engine.observers._each["observers"]._held == {}


def test_sliding_windows_show(engine, tmp_path) -> None:
    changes = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    path = save_tiny(tmp_path, **changes)
    with engine(path=path) as llm:
        found = answer(llm, extra_args={"attentions": "all"}).extras["attentions"]
        tokens = (PROMPT + answer(llm).token_ids)[:-1]
    model = tiny_model(attn_implementation="eager", **changes)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens]), output_attentions=True).attentions

    assert (found[2][:, 20, :16] == 0).all()
    for layer, weights in found.items():
        close(weights, expected[layer][0])


def test_a_model_in_half_precision_shows_its_own_states(engine, checkpoint) -> None:
    with engine(dtype="bfloat16") as llm:
        extras = answer(llm, extra_args=ALL).extras
    embedded = tiny_model().model.embed_tokens.weight[PROMPT].bfloat16()

    assert {states.dtype for states in extras["hidden_states"].values()} == {torch.bfloat16}
    assert torch.equal(extras["hidden_states"][0][: len(PROMPT)], embedded)
    assert {weights.dtype for weights in extras["attentions"].values()} == {torch.float32}
    sums = extras["attentions"][2].sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_a_probe_can_be_trained_on_what_was_seen(llm) -> None:
    states = answer(llm, extra_args=ALL).extras["hidden_states"][2]
    probe = torch.nn.Linear(64, 1)

    probe(states).sum().backward()

    assert probe.weight.grad is not None


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"hidden_states": [4]}, "hidden_states: there is no 4. This model has 0 to 3, and -1"),
        ({"attentions": [-4]}, "attentions: there is no -4. This model has 0 to 2, and -1"),
        ({"attentions": "last"}, "attentions: 'last' are no layers. Give a list of layers"),
        ({"attentions": [True]}, "attentions: [True] are no layers."),
        ({"attentions": {"layer": [1]}}, "attentions: {'layer': [1]} is not understood."),
        (
            {"hidden_states": {"layers": [1], "positions": "first"}},
            "with one of all, prompt, output, last.",
        ),
    ],
)
def test_a_wish_that_cannot_be_is_refused(llm, extra, sentence) -> None:
    with pytest.raises(UserError) as refused:
        answer(llm, extra_args=extra)

    assert sentence in str(refused.value)


def test_what_could_outgrow_the_limit_is_refused_before_it_runs(llm) -> None:
    steps = llm.engine.statistics()["steps"]
    with pytest.raises(UserError) as refused:
        answer(llm, max_tokens=200, extra_args=ALL)

    # (23 + 200 - 1) positions of 4 states of 64 floats, and of 3 layers with 4 heads over 222 keys
    size = 222 * 4 * 64 * 4 + 222 * 3 * 4 * 222 * 4
    assert f"may take {size / 2**20:.1f} MiB, and observe.memory is 1MiB" in str(refused.value)
    assert llm.engine.statistics()["steps"] == steps
    answer(llm, max_tokens=200, extra_args={"hidden_states": "all"})


def test_what_comes_is_never_more_than_was_foreseen(llm) -> None:
    observer = llm.engine.observers._each["observers"]
    for positions in ("all", "prompt", "output", "last"):
        given = {"layers": "all", "positions": positions}
        params = SamplingParams(
            temperature=0, max_tokens=6, extra_args={"hidden_states": given, "attentions": given}
        )
        (output,) = llm.generate(prompt_token_ids=[PROMPT], sampling_params=params, use_tqdm=False)
        tensors = [t for each in output.outputs[0].extras.values() for t in each.values()]
        size = sum(tensor.nbytes for tensor in tensors)
        assert size == observer.size(params, len(PROMPT), len(PROMPT) + 6), positions


def test_without_the_plugin_a_direct_look_says_what_to_do(engine) -> None:
    with engine(plugins=[]) as llm, pytest.raises(UserError, match=r'plugins=\["observers"\]'):
        look(llm, "x", attentions=[0])


def test_the_sampler_is_not_told_of_what_observers_read(engine, caplog) -> None:
    with engine() as llm:
        answer(llm, extra_args={"attentions": [0], "attention": 1})

    assert "nothing reads 'attention'" in caplog.text
    assert "nothing reads 'attentions'" not in caplog.text


def test_a_direct_look(llm, inside) -> None:
    first, second = look(llm, ["ab", "abc"], hidden_states=[-1], attentions=[1])

    assert (first.tokens, second.tokens) == (["a", "b"], ["a", "b", "c"])
    hidden, maps = inside(second.token_ids)
    close(second.hidden_states[-1], hidden[3])
    close(second.attentions[1], maps[1])
    assert len(second.output.outputs[0].token_ids) == 1


def test_last_is_where_the_first_token_of_the_answer_comes_from(llm) -> None:
    given = {"layers": [-1], "positions": "last"}
    found = answer(llm, extra_args={"hidden_states": given})

    logits = found.extras["hidden_states"][-1] @ tiny_model().lm_head.weight.T
    assert logits.argmax() == found.token_ids[0]


def test_spans_of_positions() -> None:
    for positions, expected in {
        "all": range(0, 9), "prompt": range(0, 5), "output": range(5, 9), "last": range(4, 5),
    }.items():  # fmt: skip
        assert wish("x", {"layers": "all", "positions": positions}, 3).span(5, 9) == expected
    assert len(wish("x", {"layers": "all", "positions": "output"}, 3).span(5, 3)) == 0
    assert len(wish("x", {"layers": "all", "positions": "last"}, 3).span(5, 3)) == 0
