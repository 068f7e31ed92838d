"""The table: what its cells hold, over one seed and several, in every format."""

import csv
import io

import numpy as np
import pandas as pd
import pytest

from flcore.reporting import read_results
from flcore.reporting.statistics import bootstrap_interval, paired_difference
from flcore.reporting.tables import (
    as_csv,
    as_latex,
    as_markdown,
    as_text,
    by_data_set,
    chosen_columns,
    notes,
    summary_table,
)
from flcore.utils.errors import UsageError
from flcore.utils.runs.files import write_h5
from support.results import make_run, make_seeds


def table(*paths, **options):
    return summary_table(read_results(list(paths))[0], **options)


def cells(*paths):
    """The table as one dict of texts per row."""
    found = table(*paths)
    return [dict(zip(found.header, (cell.text for cell in row), strict=True)) for row in found.rows]


def marks(*paths, column="last A"):
    found = table(*paths)
    return {row[0].text: row[found.header.index(column)].mark for row in found.rows}


def test_columns(tmp_path):
    arrays = {
        "rs_test_acc_after": [0.4, 0.5],
        "rs_test_std": [0.0, 0.0, 0.125],
        "rs_worst_decile": [0.0, 0.0, 0.0625],
        "rs_test_auc": [0.5, 0.5, 0.75],
        "rs_forgetting": [float("nan"), 0.1, 0.3],
        "rs_bytes_down": [2e6, 4e6],
        "rs_bytes_up": [1e6, 1e6],
        "rs_seconds": [9.0, 2.0, 2.0],
    }
    slower = arrays | {"rs_seconds": [9.0, 3.0, 3.0], "rs_test_acc": [0.1, 0.4, 0.3]}
    [first, second] = cells(make_run(tmp_path, "FedCPD", arrays=slower), make_run(tmp_path, arrays=arrays))
    assert first == {
        "algorithm": "FedCPD",
        "data set": "Digits",
        "seeds": "1",
        "rounds": "10",
        "last A": "30.00",
        "best A*": "40.00 @5",
        "last B": "50.00",
        "std over clients (A)": "12.50",
        "worst 10% of clients (A)": "6.25",
        "AUC (A)": "0.7500",
        "forgetting": "20.00",
        "MB down": "3.00",
        "MB up": "1.00",
        "time": "1.50",
        "margin": "+10.00",
    }
    assert second["time"] == "1.00"  # FedAvg is the measure wherever it stands
    assert second["margin"] == "-10.00"


def test_several_seeds_are_a_mean_with_its_spread(tmp_path):
    [row] = cells(*make_seeds(tmp_path, accuracies=(0.2, 0.3, 0.4)))
    assert (row["seeds"], row["last A"], row["best A*"]) == ("3", "30.00 ± 10.00", "30.00 ± 10.00")  # n - 1
    assert row["std over clients (A)"] == "10.00"  # the same for every seed, and no accuracy: no spread shown
    assert row["MB down"] == "2.00" and row["margin"] == "–"


def test_repeats_of_one_command_are_seeds_too(tmp_path):
    one = make_run(tmp_path)
    two = make_run(tmp_path, repeat=1, arrays={"rs_test_acc": [0.1, 0.4], "rs_round": [0, 5]})
    [row] = cells(one, two)
    assert (row["seeds"], row["last A"], row["best A*"], row["rounds"]) == (
        *("2", f"30.00 ± {20 / 2**0.5:.2f}", f"35.00 ± {10 / 2**0.5:.2f}", "10"),
    )


def test_pfllibs_own_file_has_dashes_for_what_it_lacks(tmp_path):
    path = tmp_path / "MNIST_FedProto_test_0.h5"
    write_h5(path, {"rs_test_acc": [0.1, 0.5], "rs_test_auc": [], "rs_train_loss": [1.0, 0.5]})
    [row] = cells(path)
    known = {"algorithm": "FedProto", "data set": "MNIST", "seeds": "1", "rounds": "1", "last A": "50.00"}
    known["best A*"] = "50.00 @1"
    assert row == dict.fromkeys(row, "–") | known


def test_an_empty_file_is_a_row_of_dashes(tmp_path):
    path = tmp_path / "MNIST_FedProto_test_0.h5"
    write_h5(path, {"rs_test_acc": []})
    assert set(list(cells(path)[0].values())[3:]) == {"–"}


def test_nan_is_passed_over(tmp_path):
    nan = float("nan")
    [row] = cells(make_run(tmp_path, arrays={"rs_test_acc": [nan, 0.25, nan]}))
    assert (row["last A"], row["best A*"]) == ("25.00", "25.00 @5")


def test_an_unfinished_seed_is_a_row_of_its_own(tmp_path):
    one = make_run(tmp_path)
    two = make_run(tmp_path, repeat=1, status="interrupted", arrays={"rs_test_acc": [0.1, 0.4], "rs_round": [0, 5]})
    rows = cells(one, two)
    assert [row["algorithm"] for row in rows] == ["FedAvg", "FedAvg [interrupted]"]
    assert [row["last A"] for row in rows] == ["20.00", "40.00"]


@pytest.mark.parametrize("last", [float("nan"), float("inf"), 1.0])
def test_a_diverged_run_is_marked(tmp_path, last):
    paths = [
        make_run(tmp_path, arrays={"rs_train_loss": [float("nan"), 1.0]}, status="interrupted"),
        make_run(tmp_path, repeat=1, arrays={"rs_train_loss": [1.0, last]}, status="interrupted"),
    ]
    marks = "interrupted" if last == 1 else "diverged, interrupted"
    assert cells(*paths)[0]["algorithm"] == f"FedAvg [{marks}]"


def test_uploads_left_out_are_told(tmp_path):
    arrays = {"rs_train_loss": [2.0, 1.0], "rs_left_out": [0, 3]}
    paths = [make_run(tmp_path, arrays=arrays), make_run(tmp_path, repeat=1, arrays=arrays)]
    assert cells(*paths)[0]["algorithm"] == "FedAvg [6 uploads left out]"


# ---- best, second, margin


def test_best_and_second_of_each_data_set_are_marked(tmp_path):
    paths = [make_seeds(tmp_path, name, (a,)) for name, a in {"Local": 0.5, "FedAvg": 0.6, "FedRep": 0.55}.items()]
    paths += [make_seeds(tmp_path, "FedCPD", (0.1,), dataset="Other")]
    assert marks(*sum(paths, [])) == {"Local": "", "FedAvg": "best", "FedRep": "second", "FedCPD": ""}
    assert set(marks(*sum(paths, []), column="MB up").values()) == {""}


def test_what_is_shown_alike_shares_its_mark(tmp_path):
    paths = [make_seeds(tmp_path, name, (a,)) for name, a in {"Local": 0.500001, "FedAvg": 0.5, "FedRep": 0.4}.items()]
    assert marks(*sum(paths, [])) == {"Local": "best", "FedAvg": "best", "FedRep": "second"}


def test_unfinished_and_diverged_runs_are_no_rivals(tmp_path):
    paths = make_seeds(tmp_path, "Local", (0.5,)) + make_seeds(tmp_path, "FedAvg", (0.4,))
    paths += make_seeds(tmp_path, "FedRep", (0.9,), status="interrupted")
    assert marks(*paths) == {"Local": "best", "FedAvg": "second", "FedRep [interrupted]": ""}
    assert [row["margin"] for row in cells(*paths)] == ["+10.00", "-10.00", "–"]


def test_the_margin_is_paired_over_the_seeds_that_both_have(tmp_path):
    # differences at the same seed: 0.1, 0.1, 0.2; the resamples of three go from their smallest to their largest
    paths = make_seeds(tmp_path, "FedCPD", (0.3, 0.5, 0.8)) + make_seeds(tmp_path, "FedRep", (0.2, 0.4, 0.6))
    paths += make_seeds(tmp_path, "Local", (0.1, 0.1), first=7)
    best, second, third = cells(*paths)
    assert best["margin"] == "+13.33 [+10.00, +20.00]" and second["margin"] == "-13.33 [-20.00, -10.00]"
    assert third["margin"] == "-43.33"  # 10 - 53.33, no seed in common


def test_the_bootstrap_interval_of_two_values_by_hand():
    # resamples (0, 0), (0, 1), (1, 0), (1, 1): means 0, 0.5, 0.5, 1; a quarter of them is 0
    assert bootstrap_interval(np.array([0.0, 1.0]), level=0.4) == (0.5, 0.5)
    assert bootstrap_interval(np.array([0.0, 1.0]), level=0.95) == (0.0, 1.0)
    assert np.isnan(bootstrap_interval(np.array([1.0]))).all()


def test_the_bootstrap_interval_of_many_values_is_near_the_normal_one():
    values = np.linspace(-1, 1, 41)
    low, high = bootstrap_interval(values)
    expected = 1.96 * values.std() / 41**0.5
    assert (low, high) == pytest.approx((-expected, expected), rel=0.05)
    assert bootstrap_interval(values) == (low, high)  # the same in every call


def test_pairs_are_found_by_seed_and_repeat_whatever_their_order():
    one = pd.DataFrame({"seed": [0, 0, 1], "repeat": [0, 1, 0], "x": [1.0, 2.0, 3.0]})
    two = pd.DataFrame({"seed": [1, 0, 4], "repeat": [0, 1, 0], "x": [1.0, 1.5, 9.0]})
    found = paired_difference(one, two, "x")
    assert (found.mean, found.pairs) == (1.25, 2)  # 2 - 1.5 and 3 - 1


# ---- formats


@pytest.fixture
def small(tmp_path):
    paths = make_seeds(tmp_path, "FedCPD", (0.5, 0.6)) + make_seeds(tmp_path, "FedAvg", (0.25, 0.75), dataset="A_B")
    return table(*paths, *make_seeds(tmp_path, "Local", (0.3, 0.6)), columns=["last A", "MB up", "margin"])


def test_text_is_aligned_and_marked_on_a_terminal_alone(small):
    lines = as_text(small).splitlines()
    assert lines[0] == "algorithm  data set  seeds  rounds         last A  MB up                  margin"
    assert lines[2] == "FedCPD     Digits        2       2   55.00 ± 7.07   1.00  +10.00 [+0.00, +20.00]"
    assert "\033" not in as_text(small)
    bold = as_text(small, bold=True)
    assert "\033[1m55.00 ± 7.07\033[0m" in bold and "\033[4m45.00 ± 21.21\033[0m" in bold
    assert bold.replace("\033[1m", "").replace("\033[4m", "").replace("\033[0m", "") == as_text(small)


def test_a_table_wider_than_the_terminal_continues_below(small):
    lines = as_text(small, width=50).splitlines()
    assert max(map(len, lines)) <= 50
    assert [line.split()[0] for line in lines if line] == ["algorithm", "---------", "FedCPD", "FedAvg", "Local"] * 2
    assert lines[0].endswith("last A") and lines[6].split() == ["algorithm", "MB", "up", "margin"]
    assert as_text(small, width=500) == as_text(small)


def test_long_heads_are_wrapped(tmp_path):
    lines = as_text(table(make_run(tmp_path), columns=["worst 10% of clients (A)"])).splitlines()
    assert lines[0].split() == ["worst", "10%", "of"]
    assert lines[1] == "algorithm  data set  seeds  rounds   clients (A)"


def test_markdown(small):
    lines = as_markdown(small).splitlines()
    assert lines[1] == "| :-- | :-- | --: | --: | --: | --: | --: |"
    assert lines[2] == r"| FedCPD | Digits | 2 | 2 | **55.00 ± 7.07** | 1.00 | +10.00 \[+0.00, +20.00\] |"
    assert r"A\_B" in lines[3] and "<u>45.00 ± 21.21</u>" in lines[4]


def test_latex(small):
    lines = as_latex(small).splitlines()
    assert lines[0] == r"\begin{tabular}{llrrrrr}" and lines[-1] == r"\end{tabular}"
    row = r"FedCPD & Digits & 2 & 2 & \textbf{55.00 $\pm$ 7.07} & 1.00 & $+$10.00 [$+$0.00, $+$20.00] \\"
    assert lines[4] == row
    assert r"A\_B" in lines[5] and r"\underline{45.00 $\pm$ 21.21}" in lines[6] and "& -- " in lines[5]


def test_latex_lets_nothing_through(tmp_path):
    path = make_run(tmp_path, dataset="x", goal="g")
    text = as_latex(table(path))
    assert r"worst 10\% of clients" in text
    results = read_results([path])[0]
    results.runs["label"] = r"\input{a}$_&#^~%"
    row = as_latex(summary_table(results, ["last A"])).splitlines()[4]
    assert row.startswith(r"\textbackslash{}input\{a\}\$\_\&\#\textasciicircum{}\textasciitilde{}\% & x")


def test_csv_has_a_column_a_number_with_all_digits(small):
    rows = list(csv.DictReader(io.StringIO(as_csv(small))))
    assert list(rows[0]) == [
        *("algorithm", "data set", "seeds", "rounds", "last A mean", "last A std over seeds"),
        *("MB up mean", "MB up std over seeds", "margin", "margin low", "margin high"),
    ]
    assert float(rows[0]["last A mean"]) == 55 and float(rows[0]["last A std over seeds"]) == pytest.approx(50**0.5)
    assert float(rows[0]["margin high"]) == 20 and rows[1]["margin"] == ""


def test_one_row_a_method_with_the_numbers_of_every_data_set(small):
    wide = by_data_set(small)
    assert wide.header == [
        "algorithm",
        *(f"{d}: {n}" for d in ("Digits", "A_B") for n in ("last A", "MB up", "margin")),
    ]
    texts = [[cell.text for cell in row] for row in wide.rows]
    assert [row[0] for row in texts] == ["FedCPD", "FedAvg", "Local"]
    assert texts[0][4:] == ["–"] * 3 and texts[1][1] == "–" and texts[1][4] == "50.00 ± 35.36"


def test_columns_are_chosen_by_the_beginning_of_their_names():
    assert chosen_columns("last a, std,margin") == ["last A", "std over clients (A)", "margin"]
    for words in ("last", "nothing", ","):
        with pytest.raises(UsageError, match="best A"):
            chosen_columns(words)


def test_notes_say_what_holds_of_these_runs_alone(tmp_path):
    few = "fewer than five seeds"
    one = read_results([make_run(tmp_path)])[0]
    assert len(notes(one)) == 1 and "forgetting" in notes(one)[0].lower()
    three = read_results(make_seeds(tmp_path / "three"))[0]
    assert few in notes(three)[1]
    assert len(notes(read_results(make_seeds(tmp_path / "five", accuracies=(0.1,) * 5))[0])) == 1
    path = make_run(tmp_path, "FedCRL")
    assert "† reconstructed" in notes(read_results([path])[0])[1]
    assert [row["algorithm"] for row in cells(path)] == ["FedCRL†"]
