"""How good the clients' models are: point A after the download, point B after local training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flcore.utils.seeds import numpy_generator

Lists = tuple[list[int], list[int], list[int], list[float]]  # ids, test samples, correct predictions, AUC times samples


class Evaluation:
    """Scores a server's clients and records the numbers.

    Attributes:
        sample: the numbers of the clients that are scored, ascending (``--eval_clients``); None: all.
    """

    def __init__(self, server: Any) -> None:
        self.server = server
        args, self.sample = server.args, None
        if args.eval_clients and args.eval_clients < server.num_clients and not server.own_loop:
            draw = numpy_generator(args.seed, server.times, "evaluation sample")
            self.sample = np.sort(draw.choice(server.num_clients, args.eval_clients, replace=False))

    @property
    def clients(self) -> Sequence[Any]:
        """The clients that are scored."""
        server = self.server
        return server.clients if self.sample is None else [server.clients[i] for i in self.sample.tolist()]

    def scored(self, clients: Sequence[Any]) -> list[Any]:
        """Those of the ``clients`` that are scored."""
        return [client for client in clients if self.sample is None or client.id in self.sample]

    def test(self, clients: Sequence[Any]) -> Lists:
        """PFLlib's four lists, with an entry for each of the clients."""
        executor = self.server.executor
        if not clients:
            return [], [], [], []
        metrics = executor.test(clients) if executor else [client.test_metrics() for client in clients]
        correct, samples, aucs = zip(*metrics, strict=True)
        weighted = [auc * n for auc, n in zip(aucs, samples, strict=True)]
        return [client.id for client in clients], list(samples), list(correct), weighted

    def accuracies(self, clients: Sequence[Any]) -> np.ndarray:
        """The test accuracy of each of the clients."""
        _, samples, correct, _ = self.test(clients)
        return per_client(correct, samples)

    def after_download(self) -> None:
        """Point A: after the download, before training. The headline, PFLlib's convention."""
        server = self.server
        _, samples, correct, aucs = server.test_metrics()
        accuracy, micro = per_client(correct, samples), ratio(sum(correct), sum(samples))
        worst, best = deciles(accuracy)
        if any(server.participation.attackers):
            benign = ~np.array(server.participation.attackers)[slice(None) if self.sample is None else self.sample]
            server.record(rs_benign_acc=ratio(np.sum(correct, where=benign), np.sum(samples, where=benign)))
        forgetting = self._score_before() - micro
        server.rs_test_acc.append(micro)
        server.rs_test_auc.append(mean_auc(aucs, samples))
        server.record(
            rs_round=server.current_round,
            rs_client_acc=accuracy,
            rs_test_mean=float(np.nanmean(accuracy)),
            rs_test_std=float(np.nanstd(accuracy)),
            rs_worst_decile=worst,
            rs_best_decile=best,
            rs_forgetting=forgetting,
        )

    def _score_before(self) -> float:
        """Accuracy at B in the round before; nan if it was not scored."""
        rounds, after = (self.server.records.get(name) for name in ("rs_round", "rs_test_acc_after"))
        return after[-1] if after and rounds[-1] == self.server.current_round - 1 else float("nan")

    def after_training(self, participants: Mapping[int, float]) -> None:
        """Point B: the participants with their accuracies after local training, the others as they were at A.

        participants: the accuracies by the clients' numbers.
        """
        server = self.server
        accuracy, ids = server.records["rs_client_acc"][-1].copy(), list(participants)
        accuracy[ids if self.sample is None else np.searchsorted(self.sample, ids)] = list(participants.values())
        sizes = np.array([client.test_samples for client in self.clients])
        micro = ratio(float(np.nansum(accuracy * sizes)), sizes.sum())
        server.record(rs_client_acc_after=accuracy, rs_test_acc_after=micro)
        losses = [client.train_loss for client in server.selected_clients]
        server.rs_train_loss.append(ratio(sum(total for total, _ in losses), sum(count for _, count in losses)))


def is_done(curves: list[list[float]], top_cnt: int | None = None, div_value: float | None = None) -> bool:
    """True once every curve had no new best for ``top_cnt`` evaluations, or varies by less than ``div_value``."""
    for values in curves:
        stale = top_cnt is not None and len(values) - 1 - int(np.argmax(values)) >= top_cnt
        window = values[-(top_cnt or len(values)) :]
        still = div_value is not None and len(window) > 1 and float(np.std(window)) < div_value
        if not (stale or still):
            return False
    return True


def ratio(part: float, whole: float) -> float:
    """part / whole, nan where there is nothing to divide by."""
    return float(part) / float(whole) if whole else float("nan")


def per_client(correct: list[int], samples: list[int]) -> np.ndarray:
    """Accuracy of every client (nan without test samples)."""
    return np.array([ratio(c, n) for c, n in zip(correct, samples, strict=True)])


def mean_auc(weighted: list[float], samples: list[int]) -> float:
    """Mean AUC by samples, over the clients for which it is defined."""
    defined = [(auc, n) for auc, n in zip(weighted, samples, strict=True) if not np.isnan(auc)]
    return ratio(sum(auc for auc, _ in defined), sum(n for _, n in defined))


def deciles(accuracy: np.ndarray) -> tuple[float, float]:
    """Mean accuracy of the worst and of the best tenth of the clients (at least one client each)."""
    ranked = np.sort(accuracy[~np.isnan(accuracy)])
    if len(ranked) == 0:
        return float("nan"), float("nan")
    tenth = -(-len(ranked) // 10)
    return float(ranked[:tenth].mean()), float(ranked[-tenth:].mean())
