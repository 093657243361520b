"""Any value of any parameter is accepted, or refused with a UserError; nothing else happens."""

from __future__ import annotations

import pickle
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.errors import UserError
from core.sampling.param_checks import RULES
from core.sampling.params import SamplingParams

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 20),
    st.floats(),
    st.floats(0, 2),
    st.text(max_size=4),
    st.characters(categories=["Cs"]),
    st.binary(max_size=2),
    st.complex_numbers(),
    st.fractions(),
    st.decimals(),
    st.integers(-5, 5).map(np.int32),
    st.floats(-2, 2).map(np.float16),
    st.just(np.array(3)),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.dictionaries(st.one_of(st.integers(-1, 5), st.text(max_size=2)), inner, max_size=2),
        st.sets(st.integers(-1, 9), max_size=2),
    ),
    max_leaves=4,
)


@settings(max_examples=400)
@given(st.dictionaries(st.sampled_from(list(RULES)), values, max_size=4))
@example({"temperature": Fraction(10**400)})
@example({"logit_bias": {"9" * 30: 1.0}})
def test_any_value_is_accepted_or_named(values: dict[str, Any]) -> None:
    try:
        params = SamplingParams(**values)
    except UserError as error:
        lines = str(error).splitlines()
        assert lines
        assert all(line.split(" ")[0] in values or "min_tokens" in line for line in lines)
    else:
        params.extra_args = {}  # anything goes there, also what equals nothing
        assert pickle.loads(pickle.dumps(params)) == params
        assert eval(repr(params)) == params


@settings(max_examples=200)
@given(st.dictionaries(st.text(min_size=1, max_size=12), values, min_size=1, max_size=3))
@example({"cls": 1})
@example({"self": 1})
def test_any_name_is_known_or_refused(values: dict[str, Any]) -> None:
    try:
        SamplingParams(**values)
    except UserError:
        return
    assert values.keys() <= RULES.keys()
