"""Call mixes: their lengths, counts and errors."""

from __future__ import annotations

import pytest

from placewright import Calls, Generate, Train
from placewright.errors import ConfigError


def test_lengths_of_prompts_have_weights():
    assert Generate(prompt=512).lengths == {512: 1.0}
    assert Generate(prompt=[16, 64]).lengths == {16: 1.0, 64: 1.0}
    assert Generate(prompt={16: 3, 64: 1}).lengths == {16: 3, 64: 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": 0}, "a prompt of 0 tokens: expected 1 or more"),
        ({"prompt": []}, "no prompt"),
        ({"prompt": {16: -1}}, "have weight -1: expected a number above 0"),
        ({"prompt": True}, "a prompt of True tokens"),
        ({"new_tokens": 0}, "new_tokens is 0: expected 1 or more"),
        ({"batch": 1.5}, "batch is 1.5: expected 1 or more"),
    ],
)
def test_what_cannot_be_generated_is_an_error(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Generate(**arguments)


def test_calls_have_arguments_and_weights():
    assert Calls([((1,),), ((2,), {"a": 3}), ((4,), {}, 5)]).parts() == [
        ((1,), {}, 1.0),
        ((2,), {"a": 3}, 1.0),
        ((4,), {}, 5),
    ]


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([], "no calls"),
        ([((), {}, 0)], "weight 0: expected a number above 0"),
        ([((), {}, 1, 2)], r"expected \(args, kwargs, weight\)"),
        ([("x", {})], "expected a tuple of arguments"),
    ],
)
def test_what_is_no_call_is_an_error(calls, message):
    with pytest.raises(ConfigError, match=message):
        Calls(calls)


def test_keys_differ_in_what_a_plan_depends_on():
    mixes = [
        Generate(prompt=16),
        Generate(prompt=17),
        Generate(prompt=16, new_tokens=2),
        Generate(prompt=16, batch=2),
        Generate(prompt=16, arguments={"num_beams": 2}),
        Calls([((1.0,), {})]),
        Calls([((1.0,), {}, 2.0)]),
        Train((1.0,)),
        Train((1.0,), optimizer="adam"),
    ]
    keys = [str(mix.key) for mix in mixes]
    assert len(set(keys)) == len(mixes)
    assert all(mix.text for mix in mixes)
