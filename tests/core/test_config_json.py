"""Reading a config.json: whatever is wrong, and whatever nobody read, is told at once."""

from __future__ import annotations

import pytest

from core.config_json import LARGEST, ConfigJson
from core.errors import UserError

NAMES = {"architectures": ["OwnForCausalLM"], "model_type": "own"}


def reading(ignore=(), **keys) -> ConfigJson:
    return ConfigJson(NAMES | keys, "OwnForCausalLM", "own", "Own", ignore)


def told(read: ConfigJson) -> list[str]:
    with pytest.raises(UserError) as caught:
        read.check()
    return str(caught.value).splitlines()


def test_keys_that_nobody_read_are_refused_by_name() -> None:
    read = reading(hidden_size=8, gain=2.5, use_cache=True)
    assert read.size("hidden_size") == 8
    assert told(read) == [
        "config.json: 'gain' is not implemented for Own. If the model computes the same without "
        "it, say model.ignore_config: [gain]."
    ]


def test_keys_that_were_read_or_are_ignored_are_not() -> None:
    read = reading(ignore=("gain", "eos_token_id"), gain=2.5, swing=None, eos_token_id="x")
    assert read.get("swing", 3) is None
    assert read.eos_ids() == ()
    read.check()


@pytest.mark.parametrize("absent", ["rope_theta", "rope_scaling", "torch_dtype", "head_dim"])
def test_each_method_reads_all_of_its_keys(absent: str) -> None:
    keys = {"rope_theta": 1e4, "rope_scaling": None, "torch_dtype": "float16", "head_dim": 4}
    read = reading(**{key: value for key, value in keys.items() if key != absent})
    read.rope(read.head_dim(4), 32, None)
    read.dtype()
    read.check()


def test_every_mistake_gets_a_line_and_a_value_that_lets_others_be_read() -> None:
    read = reading(a=0, b=LARGEST + 1, tie="yes", rms_norm_eps=2, num_attention_heads=6)
    assert [read.size("a"), read.size("b"), read.size("c")] == [2, 2, 2]
    assert read.flag("tie") is True
    assert read.eps() == 1e-6
    assert read.heads(kv_default=4) == (6, 4)
    assert len(told(read)) == 6
    assert "num_key_value_heads 4 (absent)" in told(read)[-1]


def test_without_a_word_on_key_value_heads_there_are_as_many() -> None:
    assert reading(num_attention_heads=6).heads() == (6, 6)
    assert reading(num_attention_heads=6, num_key_value_heads=None).heads(4) == (6, 6)


def test_another_models_file_is_refused() -> None:
    other = ConfigJson(NAMES, "ElseForCausalLM", "else", "Else")
    assert [line.split()[1] for line in told(other)] == ["architectures", "model_type"]
