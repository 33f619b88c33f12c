"""The table of ways that train something else than eager: ours does not, and the others' known faults show."""

import pytest
from acceptance import table, truth
from acceptance.asking import Ask
from acceptance.sections import TRUTH

ROWS = {}


def rows_of(network):
    if network not in ROWS:
        ask = Ask(network, "cpu", True, lambda row: None)
        truth.truths(ask)
        ROWS[network] = {row["arm"]: row for row in ask.rows}
    return ROWS[network]


@pytest.mark.parametrize("network", TRUTH)
def test_ours_recomputes_and_is_eager(network):
    ours = rows_of(network)["plimsoll"]
    assert ours["recomputed_ops"] > 0
    assert (ours["bits_equal"], ours["differ"]) == (True, {})


@pytest.mark.parametrize("network", TRUTH)
def test_what_recomputes_nothing_is_eager(network):
    assert rows_of(network)["eager again"]["equal"]
    assert rows_of(network)["save_on_cpu"]["equal"]
    # PyTorch saves RReLU's noise before it is drawn: an immediate copy has different numbers.
    assert network == "RReLU" or rows_of(network)["OffloadActivations"]["equal"]


def test_batch_norm_under_a_checkpoint_updates_its_statistics_twice():
    assert set(rows_of("batch norm")["checkpoint"]["differ"]) == {"buffers"}


def test_dropout_without_the_generators_state_has_other_gradients():
    row = rows_of("dropout")["checkpoint, preserve_rng_state=False"]
    assert "gradients" in row["differ"] and "loss" not in row["differ"]
    assert "**other**" in table.said(row)
    assert rows_of("dropout")["checkpoint"]["equal"]
    # Results of PyTorch's compiler are measured, not checked.
    assert "torch.compile, budget 0.3" in rows_of("dropout")


def test_a_checkpoint_under_fsdp2_that_keeps_no_state_has_other_gradients():
    rows = rows_of("dropout")
    assert rows["FSDP2, checkpoint"]["equal"], rows["FSDP2, checkpoint"]
    assert "gradients" in rows["FSDP2, checkpoint, preserve_rng_state=False"]["differ"]
    assert not [row for row in rows.values() if "failed" in row or "error" in row]
