"""Every policy: it scores what it did, the same seed does the same, all of it learns, it can be
saved, and trained on a tiny problem it finds the best plan there is."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from small_problems import all_placements

from placewright import (
    Cluster,
    Constraints,
    Device,
    Graph,
    Link,
    Op,
    Problem,
    Roofline,
    judge,
    policies,
    zoo,
)
from placewright.errors import ConfigError, FileError, ProblemError
from placewright.policies.grouping import group_ops

torch = pytest.importorskip("torch")
from placewright.training import Environment, Trainer, find_recipe, simulate_plans  # noqa: E402

SHAPES = {
    "colocrl": {"grouping": "coarse", "max_groups": 8, "hidden": 32},
    "go": {
        "hidden": 16,
        "segment": 4,
        "heads": 2,
        "tasks": ("device", "priority"),
        "drawn": 0,
        "stay_bias": 0.0,
    },
    "hierarchical": {
        "groups": 8,
        "hidden": 32,
        "grouper": 16,
        "locality": 1.0,
        "home": "stretch",
    },
    "pair": {"grouping": "coarse", "max_groups": 8},
    "placeto": {"grouping": "coarse", "max_groups": 8, "hidden": 16, "rounds": 2},
    "placeto-any": {
        "grouping": "coarse",
        "max_groups": 8,
        "hidden": 16,
        "rounds": 2,
        "shipped": False,
    },
}
"""Each policy, small enough for the tests; groups of the eight ops are, or begin as, single ops:
co-location would make two of them, in which the best plan is not to be had."""
SEQUENCES = "colocrl", "hierarchical"
"""Those that place one group after the other knowing those before: their noise can be shared by
groups that look alike, and they say how likely they are to do as another episode did."""


def test_every_policy_is_tested_here():
    assert list(SHAPES) == list(policies.POLICIES)


def small(name, **changed):
    return policies.find_config(name)(**{**SHAPES[name], **changed})


def placing(scores):
    """The last head that decides on devices."""
    return [head for head in scores.heads if head.name.startswith("device")][-1]


def eight(links: float = 1.0) -> Problem:
    """Two chains of three between a first and a last op, on two equal devices: 8 ops."""
    ops = [Op("first", flops=1, outputs=(1,))]
    for chain in range(2):
        for at in range(3):
            source = 0 if at == 0 else len(ops) - 1
            ops.append(Op(f"{chain}.{at}", flops=5 + chain, outputs=(1,), inputs=((source, 0),)))
    ops.append(Op("last", flops=1, outputs=(1,), inputs=((3, 0), (6, 0))))
    devices = tuple(
        Device(f"gpu{d}", "gpu", memory=1000, rates={"float32": 1.0}, memory_bandwidth=1e30)
        for d in range(2)
    )
    wires = {("gpu0", "gpu1"): Link(links), ("gpu1", "gpu0"): Link(links)}
    return Problem(Graph("eight", tuple(ops)), Cluster("two", devices, wires), Roofline(1, 1))


MORE = {
    "shared noise": {"shared": True},
    "merging": {"merge": True},
    "senses and draft": {"senses": True, "draft": True, "tuned": True},
}
"""What else a policy can do that must keep the contract."""


@pytest.fixture(
    params=[
        *SHAPES,
        *(f"{name}, shared noise" for name in SEQUENCES),
        "placeto-any, merging",
        "placeto-any, senses and draft",
    ]
)
def policy(request):
    name, _, more = request.param.partition(", ")
    return small(name, **MORE.get(more, {})).build(eight(), seed=3)


@pytest.mark.parametrize("noise", [0.0, 0.7])
@pytest.mark.parametrize("greedy", [False, True])
def test_score_is_the_log_probability_of_all_that_was_drawn(policy, noise, greedy):
    problem = eight()
    episodes = policy.act(problem, 6, seed=1, noise=noise, greedy=greedy)
    scores = policy.score(problem, episodes)
    found = scores.log_prob.detach().numpy()
    assert found.shape == episodes.log_prob.shape
    np.testing.assert_allclose(found, episodes.log_prob, atol=2e-6)
    assert (found <= 0).all()
    if noise:  # the same actions without the noise would be less or more likely
        kept = {key: val for key, val in episodes.actions.items() if "added" not in key}
        plain = policy.score(problem, replace(episodes, actions=kept))
        assert np.abs(plain.log_prob.detach().numpy() - found).max() > 1e-3


def test_episodes_that_are_cut_and_joined_again_are_the_same(policy):
    problem = eight()
    tied = policy.tied_episodes
    episodes = policy.act(problem, 3 * tied, seed=1, noise=0.7)
    whole = policy.score(problem, episodes).log_prob.detach().numpy()
    parts = [policy.take(episodes, 0, tied), policy.take(episodes, tied, 3 * tied)]
    assert [len(part) for part in parts] == [tied, 2 * tied]
    scores = [policy.score(problem, part).log_prob.detach().numpy() for part in parts]
    np.testing.assert_allclose(np.concatenate(scores), whole, atol=2e-6)
    joined = policy.join_episodes(parts)
    for array in ("placements", "episode_of", "log_prob", "priority", "fusion"):
        np.testing.assert_equal(getattr(joined, array), getattr(episodes, array))
    assert joined.actions.keys() == episodes.actions.keys()
    for name, values in episodes.actions.items():
        np.testing.assert_array_equal(joined.actions[name], values, err_msg=name)


def test_frequencies_are_the_probabilities(policy):
    """1,000 episodes of the first op's group: within 5 standard deviations of its probability."""
    problem = eight()
    if policy.name == "go":  # in later passes the probabilities depend on what was drawn before
        policy = small("go", passes=("unit",)).build(problem, seed=3)
    with torch.no_grad():
        if policy.name == "pair":
            next(policy.parameters()).add_(torch.linspace(-0.9, -0.3, 12))
        elif policy.name == "placeto":
            policy.out[-1].weight.mul_(5.0)
        elif policy.name == "go":
            policy.place.linear.add_(torch.linspace(-0.9, -0.3, policy.place.linear.shape[1]))
        elif policy.name == "placeto-any":
            policy.linear.add_(torch.linspace(-0.9, -0.3, 12))
        else:
            policy.placer.out.weight.mul_(5.0)  # far from even
    episodes = policy.act(problem, 1000, seed=0)
    scores = policy.score(problem, episodes)
    head = placing(scores)
    first = head.log_prob[:, 0].detach().exp().numpy()
    device = episodes.actions[head.name if policy.name == "go" else "device"][:, 0]
    for choice in np.unique(device):
        expected = first[device == choice].mean()
        spread = 5 * np.sqrt(expected * (1 - expected) / 1000)
        assert abs((device == choice).mean() - expected) < spread + 0.02


def test_entropy_is_that_of_the_choices(policy):
    scores = policy.score(eight(), policy.act(eight(), 3, seed=0))
    for head in scores.heads:
        assert head.log_prob.shape == head.entropy.shape
        assert head.entropy.shape[1:] == head.max_entropy.shape
        assert (head.entropy >= 0).all()
        assert (head.entropy <= head.max_entropy + 1e-5).all()
        assert (
            0.5 < float(head.normalised_entropy.detach()) <= 1.00001
        )  # fresh policies are undecided
    # Two devices; where groups may merge, all but the first also have somebody to merge with.
    merges = getattr(policy.config, "merge", False)
    expected = [np.log(2), *[np.log(3 if merges else 2)] * 7]
    assert placing(scores).max_entropy.tolist() == pytest.approx(expected)


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others(policy):
    problem = eight()
    one, same = policy.act(problem, 5, seed=4), policy.act(problem, 5, seed=4)
    other = policy.act(problem, 5, seed=5)
    assert (one.placements == same.placements).all()
    assert (one.log_prob == same.log_prob).all()
    assert (one.placements != other.placements).any()
    assert len(one) == 5
    assert one.episode_of.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", SHAPES)
def test_the_same_seed_makes_the_same_weights_and_leaves_torch_alone(name):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, same, other = (small(name).build(eight(), seed) for seed in (1, 1, 2))
    assert torch.rand(1) == expected
    pairs = [*zip(one.parameters(), same.parameters(), other.parameters(), strict=True)]
    assert all((a == b).all() for a, b, _ in pairs)
    assert any((a != c).any() for a, _, c in pairs)


def test_greedy_takes_the_likeliest_device_whatever_the_seed(policy):
    problem = eight()
    one, other = (policy.act(problem, 1, seed, greedy=True) for seed in (0, 1))
    assert (one.placements == other.placements).all()
    assert (one.log_prob >= np.log(1 / 8) - 1e-6).all()  # the likeliest of at most 8


def test_every_parameter_gets_a_gradient(policy):
    problem = eight()
    if policy.name == "go":  # some are for modules, and this graph is none with any
        problem = Problem(zoo.load("branches:modules=3"), problem.cluster)
    scores = policy.score(problem, policy.act(problem, 8, seed=0))
    credit = torch.linspace(-1, 1, 8)[:, None]
    (credit * scores.log_prob).sum().backward()
    still = [name for name, p in policy.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


DAMAGE = {
    "pair": ('"max_groups": 8', '"mox_groups": 8'),
    "colocrl": ('"hidden": 32', '"hidden": 16'),
    "go": ('"hidden": 16', '"hidden": 32'),
    "placeto": ('"hidden": 16', '"hidden": 32'),
    "placeto-any": ('"hidden": 16', '"hidden": 32'),
    "hierarchical": ('"hidden": 32', '"hidden": 16'),
}


def test_plans_keep_the_constraints(policy):
    problem = replace(
        eight(), constraints=Constraints(pins={"0.1": "gpu1"}, colocate=(("1.0", "1.2"),))
    )
    fresh = small(policy.name).build(problem)
    episodes = fresh.act(problem, 20, seed=0)
    judge(problem, episodes.placements)  # raises where a plan breaks one
    assert (episodes.placements[:, 2] == 1).all()


def test_a_saved_policy_is_the_same_policy(policy, tmp_path):
    problem, path = eight(), tmp_path / "policy.json"
    policies.save(policy, path)
    loaded = policies.load(path)
    assert loaded.name == policy.name
    expected, found = policy.act(problem, 4, seed=9), loaded.act(problem, 4, seed=9)
    assert (expected.placements == found.placements).all()
    assert (expected.log_prob == found.log_prob).all()
    with torch.no_grad():
        next(policy.parameters()).add_(1.0)
    policies.save(policy, path)
    assert len(list(tmp_path.iterdir())) == 2  # the old weights are gone
    assert (next(policies.load(path).parameters()) == next(policy.parameters())).all()


def test_damaged_and_mixed_up_files_are_refused(policy, tmp_path):
    path = tmp_path / "policy.json"
    policies.save(policy, path)
    (weights,) = tmp_path.glob("*.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(FileError, match="are damaged"):
        policies.load(path)
    weights.unlink()
    with pytest.raises(FileError, match="cannot be read: keep both files together"):
        policies.load(path)
    text = path.read_text()
    path.write_text(text.replace(weights.name, "../" + weights.name))
    with pytest.raises(FileError, match="names no tensors"):
        policies.load(path)
    weights.write_bytes(content)
    before, after = DAMAGE[policy.name]
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(FileError, match="is no policy of this release"):
        policies.load(path)


def test_a_policy_for_other_devices_says_so(policy):
    problem = eight()
    third = Device("gpu2", "gpu", memory=1000, rates={"float32": 1.0}, memory_bandwidth=1e30)
    names = ["gpu0", "gpu1", "gpu2"]
    links = {(a, b): Link(1.0) for a in names for b in names if a != b}
    cluster = Cluster("three", (*problem.cluster.devices, third), links)
    if policy.name in ("go", "pair", "placeto-any"):  # it serves any number of them
        episodes = policy.act(replace(problem, cluster=cluster), 30, seed=0)
        assert set(np.unique(episodes.placements)) == {0, 1, 2}
        return
    with pytest.raises(ProblemError, match="was made for 2 devices"):
        policy.act(replace(problem, cluster=cluster), 1, seed=0)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name == "go" else []) for name in SHAPES],
)
def test_it_reaches_the_optimum_of_eight_ops_on_two_devices(name):
    """Judging all 256 placements: the heavy chain with first and last, 1 + 3 · 6 + 1 = 20 s."""
    problem = eight()
    optimum = judge(problem, all_placements(problem)).value.min()
    assert optimum == pytest.approx(20)
    made = find_recipe(name)
    made = replace(made, policy_config=replace(made.policy_config, **SHAPES[name]))

    def learned(seed):
        environment = Environment(problem)
        trainer = Trainer([environment], made, seed=seed, max_evaluations=400, device="cpu")
        trainer.run()
        assert environment.evaluations <= 400
        # It has learned, and not only been lucky: what it likes best is the best there is.
        likeliest = trainer.policy.act(problem, 1, 0, greedy=True).placements
        return (
            environment.best_key
            == (0, optimum)
            == (0, simulate_plans(problem, likeliest).seconds[0])
        )

    assert any(learned(seed) for seed in (1, 2, 3))  # five of Hierarchical's six did


def test_one_episode_alone_scores_as_it_did_among_others(policy):
    problem = eight()
    episodes = policy.act(problem, 6, seed=1)
    for at in (0, 5):
        alone = policy.select(episodes, at)
        assert (alone.placements == episodes.placements[at]).all()
        found = policy.score(problem, alone).log_prob.detach().numpy()
        np.testing.assert_allclose(found[0], episodes.log_prob[at], atol=2e-6)


@pytest.mark.parametrize("name", SEQUENCES)
def test_log_prob_of_best_is_what_another_episode_did_from_where_these_were(name):
    """Decision after decision: these until then, the other one's choice, without noise."""
    policy, problem = small(name).build(eight()), eight()
    episodes = policy.act(problem, 3, seed=1, noise=0.7)
    best = policy.select(policy.act(problem, 8, seed=2), 5)
    toward = policy.score(problem, episodes, best).log_prob_of_best.detach().numpy()
    assert toward.shape == episodes.log_prob.shape
    assert (best.actions["device"] != episodes.actions["device"]).any(axis=1).all()
    plain = {key: val for key, val in episodes.actions.items() if "added" not in key}
    first = toward.shape[1] - 8  # of the decisions on devices
    for at in range(8):
        device = plain["device"].copy()
        device[:, at] = best.actions["device"][:, at]
        instead = replace(episodes, actions={**plain, "device": device})
        found = policy.score(problem, instead).log_prob.detach().numpy()
        np.testing.assert_allclose(toward[:, first + at], found[:, first + at], atol=2e-6)
    if first:  # groups are drawn first, each for itself
        group = np.repeat(best.actions["group"], len(plain["group"]), axis=0)
        instead = replace(episodes, actions={**plain, "group": group})
        found = policy.score(problem, instead).log_prob.detach().numpy()
        np.testing.assert_allclose(toward[:, :first], found[:, :first], atol=2e-6)


@pytest.mark.parametrize("name", SEQUENCES)
def test_log_prob_of_best_itself_is_an_episodes_own_log_probability(name):
    policy, problem = small(name).build(eight()), eight()
    alone = policy.select(policy.act(problem, 4, seed=1), 2)
    scores = policy.score(problem, alone, alone)
    np.testing.assert_allclose(scores.log_prob_of_best.detach().numpy(), alone.log_prob, atol=2e-6)
    assert policy.score(problem, alone).log_prob_of_best is None


@pytest.mark.parametrize("name", SEQUENCES)
def test_shared_noise_moves_fresh_policies_by_a_nat_and_is_told(name):
    """Logits of a fresh policy are near 0: a share of their size would be no noise at all."""
    sizes = []
    for shared in (False, True):
        episodes = small(name, shared=shared).build(eight()).act(eight(), 64, 0, noise=1.0)
        (told,) = (key for key in episodes.actions if key in ("added", "device_added"))
        sizes.append(float(episodes.actions[told].std()))
        assert ("group_added" in episodes.actions) == (name == "hierarchical" and not shared)
    assert sizes[0] < 0.3
    assert 0.4 < sizes[1] < 0.8  # the root of the mean of u² for u from 0 to 1 is 0.58


def test_ops_begin_in_the_group_of_their_home():
    """With a locality that nothing outweighs; else in stretches of the graph, in its order."""
    problem = replace(eight(), constraints=Constraints(colocate=(("1.0", "1.2"),)))
    for rule in ("coarse", "colocation"):
        shape = small("hierarchical", groups=4, locality=1000.0, home=rule)
        group = shape.build(problem).act(problem, 1, seed=0).actions["group"][0]
        label = group_ops(problem, rule, 4).group
        members = np.unique(problem.arrays.leader, return_index=True)[1]
        assert group.tolist() == label[np.sort(members)].tolist()
        assert len(set(group.tolist())) > 1
    stretches = small("hierarchical", groups=4, locality=1000.0).build(eight())
    assert (np.diff(stretches.act(eight(), 1, seed=0).actions["group"][0]) >= 0).all()
    with pytest.raises(ConfigError, match="no grouping is named 'nowhere'"):
        small("hierarchical", home="nowhere").build(problem).act(problem, 1, seed=0)


def rewrite(path, change):
    """Change a policy's file and its tensors so that digest and names still agree."""
    from placewright.policies.tensor_files import load_with_tensors, save_with_tensors

    data, tensors = load_with_tensors(path)
    change(data, tensors)
    save_with_tensors(path, data, tensors)


def test_tensors_that_are_none_are_refused_though_the_digest_is_right(tmp_path):
    path = tmp_path / "policy.json"
    policies.save(small("placeto").build(eight()), path)
    (weights,) = tmp_path.glob("*.safetensors")
    content = b"\xff" * 200
    name = f"policy.{hashlib.blake2b(content, digest_size=16).hexdigest()}.safetensors"
    (tmp_path / name).write_bytes(content)
    path.write_text(path.read_text().replace(weights.name, name))
    with pytest.raises(FileError, match="are no safetensors"):
        policies.load(path)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("go", "hidden", 0),
        ("go", "heads", 0),
        ("placeto", "hidden", 2**40),
        ("placeto-any", "rounds", 3_000_000),
        ("go", "layers", 3_000_000),
        ("hierarchical", "groups", 2**20),  # 64 MB a layer, if it were made
        ("colocrl", "temperature", 10**400),
        ("go", "timed", 1),
        ("placeto", None, "none"),
        ("go", "passes", ["unit"] * 1000),
    ],
)
def test_settings_out_of_range_are_refused_before_layers_are_made(tmp_path, name, setting, value):
    path = tmp_path / "policy.json"
    policies.save(small(name).build(eight()), path)

    def change(data, _):
        if setting is None:
            data["config"]["settings"] = value
        else:
            data["config"]["settings"][setting] = value

    rewrite(path, change)
    with pytest.raises(FileError, match="is no policy of this release"):
        policies.load(path)


@pytest.mark.parametrize("name", ["colocrl", "hierarchical"])
def test_kinds_of_ops_are_texts(tmp_path, name):
    path = tmp_path / "policy.json"
    policies.save(small(name).build(eight()), path)
    rewrite(path, lambda data, _: data["config"]["kinds"].__setitem__(0, []))
    with pytest.raises(FileError, match="kinds is"):
        policies.load(path)


def test_weights_that_are_not_finite_are_refused(policy, tmp_path):
    path = tmp_path / "policy.json"
    policies.save(policy, path)
    rewrite(path, lambda _, tensors: next(iter(tensors.values())).fill_(float("nan")))
    with pytest.raises(FileError, match="not finite"):
        policies.load(path)
