"""The solver's settings keep every solution: OR-Tools 9.15 loses some with presolve, 9.12 to 9.15 some without it.

The two small models were cut down from larger ones on which a release and another, or two settings, disagreed; every
stated optimum was checked against all constraints.
"""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from ortools.sat.python import cp_model

from layoutopt.optimizer.solve.model.cp_model import SolverLimits, differ, new_solver


def test_a_small_model_whose_optimum_presolve_loses() -> None:
    """Five tuples, the first best with three blocks on its second rank and none recomputed; presolve recomputes one.

    9.15.6755 with presolve gives 10,728,560,706; without it, and 9.11 to 9.14 either way, this optimum.
    """
    model = cp_model.CpModel()
    chosen, shapes = ([model.new_bool_var("") for _ in range(n)] for n in (5, 4))
    blocks = [model.new_int_var(0, 6, "") for _ in range(2)]
    again = [model.new_int_var(0, 6, "") for _ in range(4)]
    buffer, total = model.new_bool_var(""), model.new_int_var(0, 6, "")
    slowest, step = (model.new_int_var(0, 119_468_089_078, "") for _ in range(2))
    model.add_exactly_one(chosen)
    for literal, members in zip(shapes, ((4,), (0,), (1,), (2, 3)), strict=True):
        model.add(sum(chosen[i] for i in members) == literal)
    for shape, place, size in ((0, 0, 6), (1, 0, 3), (1, 1, 3), (2, 0, 2)):
        model.add(blocks[place] == size).only_enforce_if(shapes[shape])
    model.add(blocks[0] <= -1).only_enforce_if(shapes[3])
    model.add(again[0] <= blocks[0])
    model.add(total == 0).only_enforce_if(chosen[4])
    model.add(total == sum(again))
    memory = (
        (1, (8_676_565, 6_372_655, 295_570), 11_719_066),
        (4, (3_492_172, 1_723_507, 844_161), 17_377_727),
    )
    for i, (held, saved, more), room in memory:
        model.add(held * blocks[0] - saved * again[0] + more * buffer <= room).only_enforce_if(chosen[i])
    times = (
        (0, 0, 1_136_401_783, 559_444_779, 118_635_329), (0, 1, 1_136_401_783, 559_444_779, 1_338_284_750),
        (1, 0, 11_372_061_347, 5_511_615_975, 4_984_573_210),
    )  # fmt: skip
    for i, place, layer, repeated, end in times:
        model.add(slowest >= layer * blocks[place] + repeated * again[place] + end).only_enforce_if(chosen[i])
    for i, repeated, fixed in ((0, 349_652_987, 5_631_417_620), (1, 279_777_460, 4_152_078_027)):
        model.add(step >= slowest + repeated * total + fixed).only_enforce_if(chosen[i])
    model.minimize(step)
    solver = new_solver(SolverLimits())
    assert solver.solve(model) == cp_model.OPTIMAL
    assert round(solver.objective_value) == 3 * 1_136_401_783 + 1_338_284_750 + 5_631_417_620


def test_a_small_model_that_forbidden_assignments_lose() -> None:
    """A value out of reach is forbidden: as an assignment 9.15.6755 without presolve says infeasible, as a clause not."""
    model = cp_model.CpModel()
    first, second, third, other, fourth, count = (model.new_int_var(0, 4, "") for _ in range(6))
    row, whole, done, later = model.new_int_var(0, 1, ""), *(model.new_bool_var("") for _ in range(3))
    model.add(first + third + fourth == 1)
    model.add(first + second >= 1)
    model.add(third + other >= 1)
    model.add(third >= count + 1).only_enforce_if(~whole)
    model.add(first == 1).only_enforce_if(done)
    model.add(second == 0).only_enforce_if(~done)
    model.add(first + third == 1).only_enforce_if(later)
    model.add(other == 0).only_enforce_if(~later)
    differ(model, [row, first, second], [0, 3, 3])
    assert new_solver(SolverLimits()).solve(model) == cp_model.OPTIMAL


@pytest.mark.parametrize("seed", range(40))
def test_small_models_are_solved_as_by_enumeration(seed: int) -> None:
    """Blocks of two kinds on two ranks, a recomputed count with its literals, assignments excluded."""
    random = Random(seed)
    most, counts = 3, (random.randint(1, 4), random.randint(1, 4))
    weights = [[random.randint(1, 30) for _ in range(2)] for _ in range(4)]
    saved, room = [random.randint(1, 9) for _ in range(2)], random.randint(40, 120)
    forbidden = {(random.randint(0, most), random.randint(0, most)) for _ in range(5)}
    model = cp_model.CpModel()
    blocks = [[model.new_int_var(0, most, "") for _ in range(2)] for _ in range(2)]
    again = [[model.new_int_var(0, most, "") for _ in range(2)] for _ in range(2)]
    limit, slowest = model.new_int_var(0, most, ""), model.new_int_var(0, 10_000, "")
    for k in range(2):
        model.add(blocks[0][k] + blocks[1][k] == counts[k])
    for s in range(2):
        model.add(sum(blocks[s]) >= 1)
        for assignment in forbidden:
            differ(model, blocks[s], list(assignment))
        for k in range(2):
            whole, number, repeated = model.new_bool_var(""), sum(blocks[s][: k + 1]), sum(again[s][: k + 1])
            model.add(again[s][k] <= blocks[s][k])
            model.add(repeated <= limit)
            model.add(number - repeated <= 2 * most * (1 - whole))
            model.add(limit - repeated <= most * whole)
            model.add(number <= limit).only_enforce_if(whole)
            model.add(number >= limit + 1).only_enforce_if(~whole)
        held = sum(w * b for w, b in zip(weights[s], blocks[s], strict=True))
        model.add(held - sum(w * a for w, a in zip(saved, again[s], strict=True)) <= room)
        time = sum(w * b for w, b in zip(weights[2 + s], blocks[s], strict=True)) + 3 * sum(again[s])
        model.add(slowest >= time)
    model.minimize(slowest)

    def cost(first: tuple[int, int], most_again: int) -> int | None:
        worst = 0
        for s, own in enumerate((first, tuple(c - b for c, b in zip(counts, first, strict=True)))):
            if not all(0 <= b <= most for b in own) or sum(own) < 1 or own in forbidden:
                return None
            repeated = min(own[0], most_again), min(sum(own), most_again) - min(own[0], most_again)
            held = sum(w * b for w, b in zip(weights[s], own, strict=True))
            if held - sum(w * a for w, a in zip(saved, repeated, strict=True)) > room:
                return None
            worst = max(
                worst,
                sum(w * b for w, b in zip(weights[2 + s], own, strict=True)) + 3 * sum(repeated),
            )
        return worst

    costs = [cost((a, b), n) for a, b, n in product(range(most + 1), repeat=3)]
    best = min((c for c in costs if c is not None), default=None)
    solver = new_solver(SolverLimits())
    status = solver.solve(model)
    assert (round(solver.objective_value) if status == cp_model.OPTIMAL else None) == best
