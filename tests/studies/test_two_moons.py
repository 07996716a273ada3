"""The two-moons study: its data and attack, its measures against automatic differentiation, and its files."""

from __future__ import annotations

import csv

import pytest
import torch
from torch.nn.functional import cross_entropy

from robustzoo.diagnostics.relu_network import ReluNetwork
from robustzoo.errors import RobustzooError
from robustzoo.studies.two_moons import (
    batches_summary,
    compare_batches,
    run_study,
    summary,
)
from robustzoo.studies.two_moons import moons as moons_training
from robustzoo.studies.two_moons.batch_sizes import ratios
from robustzoo.studies.two_moons.moons import (
    EPSILON,
    SETTINGS,
    attack,
    initial_network,
    losses,
    moons,
    start_noise,
    train,
)
from robustzoo.studies.two_moons.study import over_seeds
from robustzoo.studies.two_moons.traces import measure, probe_square_norms
from tests.diagnostics.mlp import mlp, samples, weight_hessian


def read(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def three_small_networks():
    alone = [ReluNetwork.of(mlp((2, 5, 4, 2), seed=seed)) for seed in range(3)]
    return alone, ReluNetwork(
        tuple(torch.stack(w).detach() for w in zip(*(n.weights for n in alone), strict=True)),
        tuple(torch.stack(b).detach() for b in zip(*(n.biases for n in alone), strict=True)),
    )


def test_moons_are_two_noisy_half_circles():
    x, y = moons(0)
    assert x.shape == (500, 2) and x.dtype == torch.float64
    assert (y == 0).sum() == 250 and (y == 1).sum() == 250
    radius = x[y == 0].norm(dim=1)
    assert 0.08 < (radius - 1.0).std() < 0.12 and abs(radius.mean() - 1.0) < 0.03
    assert torch.equal(x, moons(0)[0]) and not torch.equal(x, moons(1)[0])


def test_the_network_has_10_400_weights_and_settings_start_equal():
    network = initial_network(0)
    assert sum(w[0].numel() for w in network.weights) == 10_400
    for values in (*network.weights, *network.biases):
        assert torch.equal(values[0], values[1]) and torch.equal(values[0], values[2])
    for weight, inputs in zip(network.weights, (2, 100, 100), strict=True):
        assert weight.abs().max() <= inputs**-0.5
        assert 0.9 < weight[0].std() * (3 * inputs) ** 0.5 < 1.1  # uniform within 1 / sqrt(inputs)


def test_the_attack_is_one_step_projected_to_the_ball():
    network, (x, y) = initial_network(3), moons(3)
    noise = start_noise(3, torch.arange(500), "attack", 0)
    x_adv = attack(network, x, y, noise)
    assert x_adv.shape == (3, 500, 2) and not x_adv.requires_grad
    assert (x_adv - x).abs().max() <= EPSILON * (1 + 1e-12)
    start = (x + EPSILON * (2 * noise - 1)).requires_grad_()
    logits = ReluNetwork(tuple(w[0] for w in network.weights), tuple(b[0] for b in network.biases)).forward(
        start
    )[1]
    (gradient,) = torch.autograd.grad(cross_entropy(logits, y, reduction="sum"), start)
    # The step of 2.5 epsilon leaves the ball from every start, so the sign alone decides the corner.
    assert torch.allclose(x_adv[0], x + EPSILON * gradient.sign(), rtol=0, atol=1e-12)


def test_measures_equal_autograd():
    _, together = three_small_networks()
    x, y = samples(30, 2, 2)
    rows = measure(4, together, x, y, seed=0, probes=2)
    assert [(r.setting, r.layer) for r in rows] == [
        (s, lay) for s in SETTINGS for lay in ("1", "2", "3", "all")
    ]
    x_adv = attack(together, x, y, start_noise(0, torch.arange(30), "measure", 4))
    for m in range(3):
        hessian, sizes = weight_hessian(mlp((2, 5, 4, 2), seed=m), x_adv[m], y)
        found = rows[4 * m : 4 * m + 4]
        edges = torch.tensor([0, *sizes]).cumsum(0).tolist()
        for i, row in enumerate(found[:3]):
            block = torch.linalg.eigvalsh(hessian[edges[i] : edges[i + 1], edges[i] : edges[i + 1]])
            assert row.trace == pytest.approx(block.sum().item(), abs=1e-9)
            assert row.eigenvalue_std == pytest.approx(block.std(correction=0).item(), rel=1e-7)
        whole = torch.linalg.eigvalsh(hessian)
        assert found[3].trace == pytest.approx(whole.sum().item(), abs=1e-9)
        assert found[3].eigenvalue_std == pytest.approx(whole.std(correction=0).item(), rel=1e-7)


def test_probes_estimate_the_square_norm():
    _, together = three_small_networks()
    x, y = samples(20, 2, 2)
    estimates = probe_square_norms(together, x.expand(3, *x.shape), y, seed=1, epoch=0, probes=300)
    assert estimates.shape == (300, 3)
    for m in range(3):
        hessian, _ = weight_hessian(mlp((2, 5, 4, 2), seed=m), x, y)
        error = estimates[:, m].std() / 300**0.5
        assert abs(estimates[:, m].mean() - hessian.square().sum()) < 4 * error


def test_one_step_equals_a_plain_reference(monkeypatch):
    """The first two steps of each setting, with traces by automatic differentiation of a plain module."""
    monkeypatch.setattr(moons_training, "POINTS", 20)
    monkeypatch.setattr(moons_training, "WIDTHS", (2, 4, 3, 2))
    trained = train(0, 1, lambda *_: None, batch_size=10)
    x, y = moons(0)
    order = moons_training.TrainingOrder(20, 10, 0)
    initial = initial_network(0)
    for m, penalty in enumerate(SETTINGS.values()):
        weights = [w[m].detach().clone().requires_grad_() for w in initial.weights]
        biases = [b[m].detach().clone().requires_grad_() for b in initial.biases]
        speed = [torch.zeros_like(p) for p in (*weights, *biases)]
        for step in range(2):
            epochs, ids = order.batch(step)
            one = ReluNetwork(
                tuple(w.detach()[None] for w in weights), tuple(b.detach()[None] for b in biases)
            )
            x_adv = attack(one, x[ids], y[ids], start_noise(0, ids, "attack", epochs))[0]

            def loss(*w, x_adv=x_adv, labels=y[ids], biases=biases):
                z = x_adv
                for i in range(3):
                    z = z @ w[i].T + biases[i]
                    z = z.relu() if i < 2 else z
                return cross_entropy(z, labels)

            total = loss(*weights)
            for i, factor in enumerate(penalty):
                if factor:
                    (g,) = torch.autograd.grad(loss(*weights), weights[i], create_graph=True)
                    entries = [
                        torch.autograd.grad(g.flatten()[j], weights[i], create_graph=True)[0].flatten()[j]
                        for j in range(g.numel())
                    ]
                    total = total + factor * torch.stack(entries).sum()
            gradients = torch.autograd.grad(total, [*weights, *biases])
            with torch.no_grad():
                for p, v, gradient in zip([*weights, *biases], speed, gradients, strict=True):
                    v.mul_(0.9).add_(gradient)
                    p.sub_(0.1 * v)
        for found, expected in zip(trained.weights, weights, strict=True):
            assert torch.allclose(found[m], expected, rtol=0, atol=1e-10)
        for found, expected in zip(trained.biases, biases, strict=True):
            assert torch.allclose(found[m], expected, rtol=0, atol=1e-10)


def test_losses_are_per_network():
    logits = torch.zeros(3, 5, 2)
    logits[1] += torch.tensor([50.0, 0.0])
    found = losses(logits, torch.tensor([0, 0, 0, 0, 0]))
    assert found.tolist() == pytest.approx([0.6931472, 0.0, 0.6931472])


@pytest.fixture(scope="module")
def short_study(tmp_path_factory):
    out = tmp_path_factory.mktemp("moons") / "new"
    return out, run_study(out, seeds=(0, 1), epochs=1, probes=2, workers=1)


def test_the_tables(short_study):
    out, rows = short_study
    medians, seeds = read(out / "two_moons.csv"), read(out / "two_moons_seeds.csv")
    assert list(medians[0]) == ["setting", "epoch", "layer", "trace", "eigenvalue_std"]
    assert len(medians) == 3 * 2 * 4 and len(seeds) == 2 * len(medians) == len(rows)
    assert {r["layer"] for r in medians} == {"1", "2", "3", "all"}
    for row in medians:
        both = [
            float(r["trace"])
            for r in seeds
            if all(r[key] == row[key] for key in ("setting", "epoch", "layer"))
        ]
        assert float(row["trace"]) == pytest.approx(sum(both) / 2, rel=1e-8)
    for row in rows:
        if row.layer == "all":
            parts = [
                r.trace for r in rows if (r.seed, r.setting, r.epoch) == (row.seed, row.setting, row.epoch)
            ]
            assert sum(parts) == pytest.approx(2 * row.trace)
            assert 0.0 <= row.robust_accuracy <= 1.0


def test_the_figures(short_study):
    out, _ = short_study
    for name in ("two_moons_trace.png", "two_moons_spectrum.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in out.iterdir()) == [
        "two_moons.csv",
        "two_moons_seeds.csv",
        "two_moons_spectrum.png",
        "two_moons_trace.png",
    ]


def test_results_do_not_depend_on_the_number_of_processes(short_study, tmp_path):
    out, rows = short_study
    assert run_study(tmp_path, seeds=(1, 0), epochs=1, probes=2, workers=2) == rows
    assert (tmp_path / "two_moons_seeds.csv").read_bytes() == (out / "two_moons_seeds.csv").read_bytes()


def test_summary_names_every_setting_and_seed(short_study):
    text = summary(short_study[1])
    assert "after epoch 1" in text and "2 seeds" in text
    assert all(setting in text for setting in SETTINGS)


def test_medians_are_over_seeds(short_study):
    _, rows = short_study
    assert len(over_seeds(rows)) == len(rows) // 2


def test_batch_sizes_are_compared_by_the_traces_of_the_last_epochs(short_study, tmp_path):
    """With the study's own batch of 50 a run's trace is the one that the study writes."""
    _, rows = short_study
    found = compare_batches(tmp_path, (500, 50), seeds=(0, 1), epochs=1, workers=1)
    assert [(row.batch_size, row.seed) for row in found[::3]] == [(500, 0), (500, 1), (50, 0), (50, 1)]
    known = {(r.seed, r.setting): r.trace for r in rows if r.layer == "all" and r.epoch == 1}
    assert {(r.seed, r.setting): r.trace for r in found if r.batch_size == 50} == known
    top = sum(known[seed, "Top"] for seed in (0, 1)) / sum(known[seed, "Standard"] for seed in (0, 1))
    assert ratios(found)[50]["Top"] == pytest.approx(top)
    assert "of epochs 1 to 1, then of 2 seeds" in batches_summary(found, 1)
    for wrong in ((30,), (), (50, 50)):
        with pytest.raises(RobustzooError, match="divisors of the 500 points"):
            compare_batches(tmp_path / "new", wrong)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"probes": 1}, "probes is 1"),
        ({"seeds": ()}, "at least one"),
        ({"seeds": (1, 1)}, "each once"),
        ({"seeds": (-1,)}, "not negative"),
        ({"workers": 0}, "workers is 0"),
        ({"out": "taken"}, "is a file"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, wrong, message):
    (tmp_path / "taken").touch()
    with pytest.raises(RobustzooError, match=message):
        run_study(**{**wrong, "out": tmp_path / wrong.get("out", "out")})
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.slow
def test_the_top_layers_penalty_halves_the_whole_trace():
    """With batches of 50 the median trace with Top is at the end at most half of Standard's; with the other
    batch sizes of the docs it is more."""
    finals = {setting: [] for setting in SETTINGS}
    for seed in range(5):
        rows = []

        def at_the_end(epoch, network, x, y, seed=seed, rows=rows):
            if epoch == 100:
                rows.extend(measure(epoch, network, x, y, seed=seed, probes=2))

        train(seed, 100, at_the_end)
        for row in rows:
            if row.layer == "all":
                finals[row.setting].append(row.trace)
    medians = {setting: sorted(values)[2] for setting, values in finals.items()}
    assert medians["Top"] <= 0.5 * medians["Standard"]
    assert medians["Full"] <= 0.5 * medians["Standard"]
