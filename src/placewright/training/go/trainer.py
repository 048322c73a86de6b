"""GO's training on many graphs: lessons and seconds in, a policy out; it may stop and go on.

First imitation of teachers' plans, then PPO, with a step of imitation beside every update so that
neither the passes nor the answer to a search forget what strong plans are like. A plan that the
policy finds and that is better than its teacher's becomes what is taught (expert iteration).
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.files.header import body, head
from placewright.policies import load, restored
from placewright.policies.storage import load_with_tensors, save_with_tensors
from placewright.solvers.ordering.priority_rules import priority_rules
from placewright.training.algorithms import PPO, Pressure
from placewright.training.go.elites import Elites
from placewright.training.go.imitation import Imitation
from placewright.training.go.issue_order import IssuingEnvironment, clock
from placewright.training.rewards import Graded, Reward
from placewright.training.threads import torch_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

    from placewright.policies import Episodes
    from placewright.policies.go.config import Shape
    from placewright.policies.go.policy import Go
    from placewright.training.environment import Judged
    from placewright.training.go.demonstrations import Lesson

_POLICY, _ADAM = "policy.", "adam."
TEACHER, LIKELIEST, SAMPLED, ORDERED = "teacher", "argmax", "sampled", "ordered"


@dataclass(frozen=True)
class GoRecipe:
    """How GO is trained on many graphs.

    Args:
        imitated: The share of the seconds, or steps, that goes to imitation alone.
        repeated: Gradient steps in one such step of imitation, as PPO has its epochs.
        beside: Steps of imitation beside each later update.
        samples: Episodes of an update.
        rate: Adam's learning rate in imitation and in PPO; both fall to a tenth in a straight line.
        floor: A share of an even choice's entropy, below which entropy is worth 1 a nat.
    """

    imitated: float = 0.3
    repeated: int = 1
    beside: int = 1
    samples: int = 16
    rate: tuple[float, float] = (1e-3, 1e-3)
    floor: float = 0.1
    clip: float = 1.0
    algorithm: PPO = field(default_factory=PPO)
    imitation: Imitation = field(default_factory=Imitation)
    reward: Reward = field(default_factory=lambda: Graded(step=1.0))


@dataclass(frozen=True)
class Point:
    """What a step was like.

    Args:
        ratio: The likeliest plan, or in imitation nothing, over the teacher's plan.
        best: The best plan so far over the teacher's plan.
        said: What imitation or PPO said.
    """

    step: int
    seconds: float
    part: str
    task: str
    ratio: float
    best: float
    said: dict[str, float]


class GoTraining:
    """Trains a policy on lessons for so many seconds.

    Args:
        device: Where the policy lives; judging is always on the CPU.
        threads: That judge plans.
        fused: Whether plans that say nothing of fusion are fused as a compiler would.
    """

    def __init__(
        self,
        policy: Go,
        lessons: Sequence[Lesson],
        recipe: GoRecipe | None = None,
        seed: int = 0,
        device: str = "auto",
        threads: int = 1,
        fused: bool = False,
    ) -> None:
        import torch

        self.recipe, self.seed = recipe or GoRecipe(), seed
        self.lessons = list(lessons)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.policy: Go = policy.to(device)
        self.policy.clock = clock
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=self.recipe.rate[0])
        self.environments = [
            IssuingEnvironment(each.problem, threads, fused) for each in self.lessons
        ]
        self.references: dict[int, float] = {}
        """What each teacher's plan takes in the order that GO gives it."""
        self.own: dict[int, tuple[float, float]] = {}
        """Bytes over and objective of the best plan that the policy itself made."""
        self.curves: dict[int, list[tuple[int, float, float]]] = {}
        """For each problem (plans judged, seconds, `own`) each time that it improved."""
        self.elites = [Elites(len(self.policy.shape.slots)) for _ in self.lessons]
        """The best plans of each problem, where half of all episodes begin."""
        self.steps, self.seconds = 0, 0.0
        self.points: list[Point] = []
        self._pool = ThreadPoolExecutor(1)

    def run(
        self,
        seconds: float,
        watch: Callable[[GoTraining], bool] | None = None,
        most: int | None = None,
    ) -> None:
        """Go on until training has taken so many seconds in all, or so many steps if given.

        Args:
            watch: Called after each step; training pauses if it says false.
        """
        before, began = self.seconds, time.perf_counter()
        pending: tuple[int, Episodes, Future[Judged]] | None = None
        with torch_threads(1):
            while self.seconds < seconds and (most is None or self.steps < most):
                done = self.seconds / seconds if most is None else self.steps / most
                rng = np.random.default_rng([self.seed, self.steps, 11])
                if done < self.recipe.imitated:
                    for _ in range(self.recipe.repeated):
                        self._imitate(rng, self._rate(0, done / max(self.recipe.imitated, 1e-9)))
                else:
                    share = (done - self.recipe.imitated) / (1 - self.recipe.imitated)
                    # While one problem's plans are judged, the policy learns from another's.
                    coming = self._draw(rng)
                    if pending is not None:
                        self._reinforce(*pending, self._rate(1, share))
                    pending = coming
                    for _ in range(self.recipe.beside):
                        self._imitate(rng, self._rate(1, share), quiet=True)
                self.steps += 1
                self.seconds = before + time.perf_counter() - began
                if watch is not None and not watch(self):
                    break
            if pending is not None:
                pending[2].result()

    def _rate(self, part: int, done: float) -> float:
        return self.recipe.rate[part] * (1 - 0.9 * min(done, 1.0))

    def _imitate(self, rng: np.random.Generator, rate: float, quiet: bool = False) -> None:
        at = int(rng.integers(len(self.lessons)))
        self._set_rate(rate)
        said = self.recipe.imitation.step(self.policy, self.optimizer, self.lessons[at], rng)
        if not quiet:
            self._note("imitation", at, float("nan"), said)

    def _draw(self, rng: np.random.Generator) -> tuple[int, Episodes, Future[Judged]]:
        at = int(rng.integers(len(self.lessons)))
        self.reference(at)
        seed = int(rng.integers(2**31))
        problem, count = self.lessons[at].problem, self.recipe.samples
        begun = self.elites[at].begun(self.policy.first(problem, count), rng)
        slots = self.elites[at].slots
        episodes = self.policy.act(problem, count, seed, begun=begun, slots=slots)
        judge = self.environments[at].judge
        return (
            at,
            episodes,
            self._pool.submit(judge, episodes.device, SAMPLED, episodes.priority, episodes.fusion),
        )

    def _reinforce(self, at: int, episodes: Episodes, coming: Future[Judged], rate: float) -> None:
        from placewright.policies.go.policy import begun_of

        judged, lesson = coming.result(), self.lessons[at]
        environment, recipe = self.environments[at], self.recipe
        reward = recipe.reward(judged, environment.reference)
        advantage = _advantage(reward, begun_of(episodes, "start"))
        self._set_rate(rate)
        pressure = Pressure(floor=recipe.floor, clip=recipe.clip)
        said = recipe.algorithm.update(
            self.policy, lesson.problem, episodes, advantage, self.optimizer, pressure
        )
        self._keep_own(at, judged)
        self.elites[at].add(episodes, judged)
        said["invalid"] = float(1 - judged.valid.mean())
        said["mean"] = float(judged.seconds.mean()) / self.reference(at)
        likeliest = self.likeliest(at)
        self._learn_from_itself(at)
        self._note("ppo", at, likeliest / self.reference(at), said)

    def reference(self, at: int) -> float:
        """What a teacher's plan takes in GO's order; judged, and counted, once."""
        if at not in self.references:
            lesson = self.lessons[at]
            device = lesson.device[:1]
            order = self.policy.order(lesson.problem, device)
            judged = self.environments[at].judge(device, TEACHER, order)
            self.references[at] = float(judged.seconds[0])
        return self.references[at]

    def likeliest(self, at: int) -> float:
        """What the best argmax plan takes, one from each first plan; judged, and counted."""
        count = self.policy.shape.starts
        episodes = self.policy.act(self.lessons[at].problem, count, 0, greedy=True)
        judged = self.environments[at].judge(
            episodes.device, LIKELIEST, episodes.priority, episodes.fusion
        )
        self._keep_own(at, judged)
        self.elites[at].add(episodes, judged)
        return float(np.where(judged.valid, judged.seconds, np.inf).min())

    def order(self, at: int) -> None:
        """Judge its best plans of a problem in every order that a rule gives them, too.

        The policy's own order is the longest way first, with classes before and behind. Which rule
        suits a plan differs by graph (of RNNLM-2 9 %), and a dozen plans judged tell.
        """
        problem, environment = self.lessons[at].problem, self.environments[at]
        for device in self.policy.see(problem).settle(self.elites[at].devices):
            orders = np.stack(list(priority_rules(problem, device).values()))
            devices = np.repeat(device[None], len(orders), axis=0)
            self._keep_own(at, environment.judge(devices, ORDERED, orders))

    def _keep_own(self, at: int, judged: Judged) -> None:
        best = int(np.lexsort((judged.seconds, judged.over))[0])
        key = float(judged.over[best]), float(judged.seconds[best])
        if key < self.own.get(at, (np.inf, np.inf)):
            self.own[at] = key
            plans = self.environments[at].evaluations
            self.curves.setdefault(at, []).append((plans, self.environments[at].seconds, key[1]))

    def _learn_from_itself(self, at: int) -> None:
        """What is better than the teacher is taught from now on."""
        environment, lesson = self.environments[at], self.lessons[at]
        if environment.best is None or environment.found_by == TEACHER:
            return
        if environment.key >= (float(lesson.over[0]), self.references[at]):
            return
        if (environment.best == lesson.device[0]).all():
            return
        self.lessons[at] = replace(
            lesson,
            by=("go", *lesson.by),
            device=np.concatenate([environment.best[None], lesson.device])[:6],
            value=np.append(environment.key[1], lesson.value)[:6],
            over=np.append(int(environment.key[0]), lesson.over)[:6],
        )

    def _set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _note(self, part: str, at: int, ratio: float, said: dict[str, float]) -> None:
        environment = self.environments[at]
        best = environment.key[1] / self.references[at] if at in self.references else float("nan")
        task = self.lessons[at].task.key
        self.points.append(Point(self.steps, self.seconds, part, task, ratio, best, said))

    def save(self, path: Path) -> None:
        """Write the policy, Adam's averages and how far training is; see `resume`."""
        tensors = {f"{_POLICY}{key}": value for key, value in self.policy.state_dict().items()}
        for number, averages in self.optimizer.state_dict()["state"].items():
            tensors |= {f"{_ADAM}{number}.{name}": value for name, value in averages.items()}
        data = {
            **head("go-training"),
            "policy": self.policy.name,
            "config": self.policy.config(),
            "steps": self.steps,
            "seconds": self.seconds,
            "seed": self.seed,
            "lessons": [lesson.task.key for lesson in self.lessons],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        save_with_tensors(path, data, {key: val.detach().cpu() for key, val in tensors.items()})

    def resume(self, path: Path) -> None:
        """Stand where a file says; plans better than the teachers' are found anew.

        Raises:
            FileError: It is missing, damaged or no training of GO.
        """
        data, tensors = load_with_tensors(path)
        found = body(data, "go-training")
        own = {
            key.removeprefix(_POLICY): val
            for key, val in tensors.items()
            if key.startswith(_POLICY)
        }
        self.policy.load_state_dict(restored(found, own).state_dict())
        averages: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith(_ADAM):
                number, _, name = key.removeprefix(_ADAM).partition(".")
                averages.setdefault(int(number), {})[name] = value
        mine = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**mine, "state": averages})
        self.steps, self.seconds = int(found["steps"]), float(found["seconds"])


def _advantage(
    reward: NDArray[np.float64], begun: dict[str, NDArray[np.int64]]
) -> NDArray[np.float64]:
    """Episodes × 1: rewards less the mean of those that began alike, in deviations of all."""
    start = np.concatenate(list(begun.values()), axis=1)
    _, same = np.unique(start, axis=0, return_inverse=True)
    same = same.reshape(-1)
    mean = np.bincount(same, reward) / np.bincount(same)
    off = reward - mean[same]
    return (off / max(float(off.std()), 1e-6))[:, None]


def begun(shape: Shape, lessons: Sequence[Lesson], seed: int, begin: Path | None = None) -> Go:
    """A fresh policy, or one that was trained before."""
    if begin is None:
        return shape.build(lessons[0].problem, seed)
    policy: Any = load(begin)
    policy.shape = replace(policy.shape, most=shape.most)
    made: Go = policy
    return made


def report(training: GoTraining) -> list[dict[str, Any]]:
    """For each lesson the likeliest plan and the best one found, over its teacher's plan."""
    rows = []
    for at, lesson in enumerate(training.lessons):
        reference = training.reference(at)
        rows.append(
            {
                "task": lesson.task.key,
                "units": len(training.policy.see(lesson.problem)),
                "teacher": reference,
                "likeliest": training.likeliest(at) / reference,
                "best": training.environments[at].key[1] / reference,
                "plans": training.environments[at].evaluations,
            }
        )
    return rows
