"""Bits-back coding: what is coded comes back, at the rate the formulas promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import idode
from idode.codec import bound, ordinary
from idode.codec.bases import Basis, patch_sides
from idode.codec.blocks import decode_block, encode_block
from idode.codec.bound import image_bits
from idode.codec.bytestream import Reader, varint, whiten
from idode.codec.coder import DamagedError, Stack
from idode.codec.coding import check_header, header_of, model_for
from idode.codec.network import Denoiser, one_thread
from idode.codec.scheme import EmptyError, Scheme
from idode.codec.steps import best_grid, make_plan
from idode.codec.tables import Tables, fit
from idode.data.loading import load
from idode.diffusion.model import DiffusionODE
from idode.diffusion.schedules import SCHEDULES

STEPS = 3


@pytest.fixture(scope="module")
def model():
    return model_for("pretrained:digits")


@pytest.fixture(scope="module")
def scheme(model):
    return model.scheme(STEPS)


@pytest.fixture(scope="module")
def digits():
    return np.array(load("digits").test)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 6, 4), (2, 5, 7)])
def test_the_basis_is_orthonormal_and_its_inverse_is_exact(shape):
    basis = Basis(shape, patch_sides(*shape[1:])[0])
    eye = torch.eye(basis.size, dtype=torch.float64)
    torch.testing.assert_close(basis.matrix @ basis.matrix.T, eye, atol=1e-13, rtol=0)
    x = torch.randn(3, *shape, dtype=torch.float64)
    c = basis.to_coefficients(x)
    torch.testing.assert_close(basis.to_pixels(c), x, atol=1e-12, rtol=0)
    torch.testing.assert_close(c.square().sum(), x.square().sum())


def test_a_constant_patch_has_one_coefficient():
    basis = Basis((3, 8, 8), 8)
    c = basis.to_coefficients(torch.ones(1, 3, 8, 8, dtype=torch.float64))
    assert c[0, 0, 0] == pytest.approx(math.sqrt(3 * 64))
    assert float(c[0, 0, 1:].abs().max()) < 1e-12


def test_what_is_pushed_is_popped_and_the_sealed_bytes_come_back():
    rng = np.random.default_rng(0)
    sealed = rng.bytes(4000)
    stack = Stack(sealed)
    mean, deviation = rng.normal(0, 50, 500), np.exp(rng.normal(1, 1, 500))
    symbols = np.rint(mean + deviation * rng.normal(size=500)).astype(np.int64)
    drawn = stack.pop(mean, np.full(500, 4.0), 32)
    stack.push(symbols, mean, deviation)
    stack.push_pixels(symbols % 17, symbols % 17 + 0.3, deviation, 17)
    again = Stack.of(stack.words())
    assert np.array_equal(again.pop_pixels(symbols % 17 + 0.3, deviation, 17), symbols % 17)
    assert np.array_equal(again.pop(mean, deviation), symbols)
    again.push(drawn, mean, np.full(500, 4.0), 32)
    assert again.unseal() == sealed


@pytest.mark.parametrize("far", [33, -33, 70_000, -(2**31)])
def test_a_symbol_far_outside_of_its_window_is_escaped(far):
    stack = Stack(bytes(400))
    symbols, mean = np.array([0, far, 1]), np.array([0.2, -0.4, 0.5])
    stack.push(symbols, mean, np.full(3, 4.0))
    assert np.array_equal(stack.pop(mean, np.full(3, 4.0)), symbols)
    assert stack.unseal() == bytes(400)


def test_estimates_that_are_not_finite_are_refused_before_they_meet_the_coder():
    stack = Stack(bytes(40))
    for bad in (np.nan, np.inf, 1e30):
        with pytest.raises(DamagedError, match="out of bounds"):
            stack.pop(np.array([bad]), np.array([4.0]))


def test_popped_symbols_have_the_distribution_they_are_popped_under():
    stack = Stack(np.random.default_rng(1).bytes(80_000))
    drawn = stack.pop(np.full(40_000, 0.25), np.full(40_000, 4.0), 32)
    error = 4 / math.sqrt(40_000)  # standard error of the mean
    assert abs(drawn.mean() - 0.25) < 4 * error
    assert abs(drawn.var() - 16 - 1 / 12) < 4 * 16 * math.sqrt(2 / 40_000)


def test_numbers_and_whitened_bytes_come_back():
    for n in (0, 1, 127, 128, 300, 2**40):
        assert Reader(varint(n)).varint(2**41) == n
    data = bytes(range(256))
    assert whiten(whiten(data)) == data != whiten(data)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_ordinary_coders_are_lossless(channels):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (channels, 9, 14), dtype=np.uint8)
    flat = np.full((channels, 9, 14), 7, dtype=np.uint8)
    flat[-1] = 0  # colours below zero alpha must survive
    for image in (noise, flat, np.broadcast_to(noise[:, :1], noise.shape)):
        stored = ordinary.encode(np.ascontiguousarray(image))
        assert np.array_equal(ordinary.decode(stored, image.shape), image)


def test_a_batch_comes_back_at_the_rate_of_its_own_account(scheme, digits):
    stack = Stack(np.random.default_rng(0).bytes(4 * (24 * scheme.start_bits // 32 + 9)))
    before = stack.bits
    with one_thread():
        costs = scheme.encode(stack, digits[:24])
        # The account takes densities for masses; bins are a quarter of a deviation.
        assert stack.bits - before == pytest.approx(costs.sum(), rel=0.01)
        found = scheme.decode(Stack.of(stack.words()), 24)
    assert np.array_equal(found, digits[:24])


def test_coding_costs_what_the_bound_of_its_steps_says(scheme, digits):
    images = digits[:64]
    stack = Stack(np.random.default_rng(0).bytes(4 * (64 * scheme.start_bits // 32 + 9)))
    before = stack.bits
    with one_thread():
        scheme.encode(stack, images)
    expected = np.mean([image_bits(scheme, images, seed).sum() for seed in range(3)])
    # 0.7% is the spread of one draw of the noise of 64 images.
    assert (stack.bits - before) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("steps", "count", "some"), [(25, 50, 4), (25, 75, 12), (3, 7, 3)])
def test_an_estimate_evaluates_other_steps_of_each_image_and_all_equally_often(steps, count, some):
    chosen = bound._chosen(steps, count, some, np.random.default_rng(0))
    assert all(len(set(row)) == some for row in chosen)
    times = np.bincount(chosen.ravel(), minlength=steps + 1)
    assert times[0] == 0
    assert np.ptp(times[1:]) == (0 if count % steps == 0 or some == steps else 1)


def test_an_estimate_from_some_steps_is_near_that_from_all(model, digits, monkeypatch):
    scheme = model.scheme(12)
    images = digits[:48]
    whole = image_bits(scheme, images).sum()
    monkeypatch.setattr(bound, "STEPS_OF_FEW", 5 * 48)
    assert not bound.every_step(scheme, 48)
    # 1.4% is the spread of such estimates over seeds, and 1% that of the noise of all steps.
    found = np.mean([image_bits(scheme, images, seed).sum() for seed in range(2)])
    assert found == pytest.approx(whole, rel=0.04)


def test_an_empty_stack_is_noticed(scheme, digits):
    with one_thread(), pytest.raises(EmptyError):
        scheme.encode(Stack(bytes(80)), digits[:8])


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_a_block_of_any_number_of_images_comes_back(scheme, digits, count):
    with one_thread():
        data = encode_block(scheme, digits[:count])
        found = decode_block(scheme, data, count, (1, 8, 8))
    assert np.array_equal(found, digits[:count])


def test_a_block_is_never_larger_than_by_ordinary_coders(scheme, digits):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 17, (12, 1, 8, 8), dtype=np.uint8)
    with one_thread():
        assert len(encode_block(scheme, noise)) <= len(encode_block(None, noise))


def test_an_image_the_model_would_make_larger_is_stored_by_an_ordinary_coder(scheme, digits):
    checkers = (np.indices((8, 8)).sum(0) % 2 * 16).astype(np.uint8)[None]
    images = np.concatenate([digits[:24], checkers[None]])
    with one_thread():
        data = encode_block(scheme, images)
        found = decode_block(scheme, data, 25, (1, 8, 8))
    assert np.array_equal(found, images)
    sizes = Reader(data)
    batches = [sizes.varint(25) for _ in range(sizes.varint(25))]
    assert 12 < sum(batches) < 25


def test_the_grid_starts_at_little_noise_and_more_steps_cost_less(model):
    costs = []
    for steps in (4, 8, 16, 32):
        gamma, cost = best_grid(model.tables, steps)
        assert len(gamma) == steps + 1
        assert (np.diff(gamma) > 0).all()
        costs.append(cost)
    assert costs == sorted(costs, reverse=True)


def test_the_best_grid_is_better_than_a_uniform_one(model):
    plan = make_plan(model.tables, SCHEDULES["vp"], 8)
    uniform = np.linspace(plan.gamma[0], plan.gamma[-1], 9)
    error = np.exp(model.tables.log_error(uniform[1:]))
    share = model.tables.at("share", uniform[1:])
    gained = np.exp(-uniform[:-1]) - np.exp(-uniform[1:])
    steps = 0.5 * np.log1p(gained[:, None, None] * error).mean(2)
    assert (steps * share).sum() > plan.expected - model.tables.at("pixel_nats", plan.gamma[:1])[0]


def test_tables_come_back_from_their_file(model, tmp_path):
    model.tables.save(tmp_path / "codec.safetensors")
    again = Tables.load(tmp_path / "codec.safetensors")
    assert again.about == model.tables.about
    assert np.array_equal(again.error, model.tables.error)
    (tmp_path / "codec.safetensors").write_bytes(b"nonsense")
    with pytest.raises(idode.InputError, match="cannot be read"):
        Tables.load(tmp_path / "codec.safetensors")


@pytest.mark.parametrize("schedule", ["vp", "sp"])
def test_the_error_of_a_network_that_knows_nothing_is_the_power_of_the_data(schedule):
    """A network that predicts zero data errs by the data itself, at every noise level."""

    def net(x, t):
        gamma = -6.0 + 11.0 * t.double()
        eps = x / SCHEDULES[schedule].sigma(gamma).to(x.dtype)[:, None, None, None]
        return eps

    from idode.diffusion.predictors import NOISE

    blind = DiffusionODE(
        net, SCHEDULES[schedule], -6.0, 5.0, predictor=NOISE, levels=17, shape=(1, 8, 8)
    )
    images = np.array(load("digits").train[:256])
    tables = fit(blind, images)
    at = np.array([-3.0])
    found = (np.exp(tables.log_error(at)) * tables.at("share", at)[..., None]).sum(1)[0]
    # Steps of an eighth of an octave, and a share of the overall mean in every class.
    assert np.abs(np.log(found / tables.power)).max() < 0.1


def test_the_network_sees_one_batch_shape_and_neighbours_change_nothing(model, digits):
    seen = []
    inner = model.ode.net

    def net(x, t):
        seen.append(tuple(x.shape))
        return inner(x, t)

    denoiser = Denoiser(model.ode.with_net(net), (1, 8, 8), 8)
    z = torch.randn(21, 1, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with one_thread():
        whole = denoiser.pixels(z, -2.0)
        assert torch.equal(denoiser.pixels(z[:3], -2.0), whole[:3])
    assert set(seen) == {(denoiser.batch, 1, 8, 8)}


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_other_weights_arithmetic_or_tables_are_refused_with_what_differs(model, scheme):
    header = header_of(model, scheme)
    assert check_header(header, model, "x").plan.hash() == scheme.plan.hash()
    with pytest.raises(idode.InputError, match="made with weights 000000000000, and those of"):
        check_header({**header, "weights": "0" * 64}, model, "x")
    here = header["environment"]
    there = {**here, "torch": "1.0", "instruction set": "another", "zlib": "0.1"}
    with pytest.raises(idode.InputError) as refused:
        check_header({**header, "probe": "0", "environment": there}, model, "x")
    assert "other network outputs" in str(refused.value)
    assert f"torch 1.0 there, {torch.__version__} here" in str(refused.value)
    assert f"instruction set another there, {here['instruction set']} here" in str(refused.value)
    assert "zlib" not in str(refused.value)  # which has no part in the network
    with pytest.raises(idode.InputError, match="computes other tables"):
        check_header({**header, "plan": "0"}, model, "x")


def test_a_scheme_is_the_same_in_another_process(scheme):
    import pickle

    copy = pickle.loads(pickle.dumps(scheme))
    assert isinstance(copy, Scheme)
    assert copy.plan.hash() == scheme.plan.hash()
