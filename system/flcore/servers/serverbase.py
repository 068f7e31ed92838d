"""Everything a server does that is not an algorithm: PFLlib's attributes and methods around a `RoundLoop`.

Its parts do the work, a page each in support/: who takes part, what arrives, how good it is, what is recorded. A
subclass sets ``shares`` and overrides `send_models`, `receive_models` or `aggregate_parameters`; a PFLlib-style server
may as well bring its own `train` (support/pfllib_host.py).
"""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from flcore.clients.support import privacy
from flcore.servers.messages import CLASS_MEANS
from flcore.servers.roundloop import RoundLoop, share_of
from flcore.servers.support import dlg, faults, newcomers, pfllib_host
from flcore.servers.support.clients import ManyClients
from flcore.servers.support.evaluation import Evaluation, Lists, is_done
from flcore.servers.support.participation import Participation
from flcore.servers.support.recorder import Recorder
from flcore.servers.support.uploads import RoundUploads
from flcore.trainmodel.forward import Tensors
from flcore.trainmodel.state_store import StateStore
from flcore.trainmodel.weights import Weights
from flcore.utils import interrupt
from flcore.utils.errors import DivergedError


class Server(pfllib_host.PFLlibMethods, RoundLoop):
    """
    Args:
        args: the run's arguments; ``args.model`` is the common initial network, ``args.method`` the registry's card.
        times: index of the repeat (``-t``).

    Attributes:
        records: lists of what was recorded, under their names in the result file; `record` adds to them.
        observers: told of every trained client and round, see `flcore.observers`; one may end the training.
    """

    rule: Any = None  # the client's half; None for a PFLlib-style server, which calls `set_clients` itself
    # attributes that a later round reads, for checkpoints; a subclass names its own ones only
    remembers: tuple[str, ...] = ("global_params", "records", "rs_test_acc", "rs_test_auc", "rs_train_loss", "Budget")
    checkpoints: Any = None  # writes them between rounds, and resumes
    own_loop = False  # True: brings its own `train`, as PFLlib's servers do
    by_messages = True  # False: reads more of its clients than what they send, so that these must be in its process

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        pfllib_host.adopt(cls)

    def __init__(self, args: Any, times: int) -> None:
        self.args, self.times, self.method = args, times, args.method
        self.algorithm, self.dataset, self.goal, self.device = args.algorithm, args.dataset, args.goal, args.device
        self.num_classes, self.batch_size, self.local_epochs = args.num_classes, args.batch_size, args.local_epochs
        self.global_rounds, self.eval_gap = args.global_rounds, args.eval_gap
        self.learning_rate, self.num_clients = args.local_learning_rate, args.num_clients
        self.join_ratio, self.random_join_ratio = args.join_ratio, args.random_join_ratio
        self.num_join_clients = self.current_num_join_clients = share_of(self.num_clients, self.join_ratio)
        self.few_shot, self.top_cnt, self.auto_break = args.few_shot, args.top_cnt, args.auto_break
        self.save_folder_name, self.client_drop_rate = args.save_folder_name, args.client_drop_rate
        self.train_slow_rate, self.send_slow_rate = args.train_slow_rate, args.send_slow_rate
        self.time_select = args.time_select or "time_threthold" in args.given
        self.time_threthold = args.time_threthold
        self.dlg_eval, self.dlg_gap, self.batch_num_per_client = args.dlg_eval, args.dlg_gap, args.batch_num_per_client
        self.num_new_clients, self.fine_tuning_epoch_new = args.num_new_clients, args.fine_tuning_epoch_new
        self.eval_new_clients = False
        self.clients: Sequence[Any] = []
        self.selected_clients = []
        self.new_clients: list[Any] = []
        self.uploaded_ids, self.uploaded_weights, self.uploaded_models = [], [], []
        self.rs_test_acc, self.rs_test_auc, self.rs_train_loss = [], [], []
        self.records: dict[str, list[Any]] = {}
        self.Budget: list[float] = []
        self.current_round = self.bytes_down = self.bytes_up = 0
        self.observers: list[Any] = []
        self.weights = Weights(args.model)
        self.store = StateStore(args.state_dir, args.state_cache) if args.state_dir else None
        self.participation = Participation(self)
        self.evaluation = Evaluation(self)
        self.recorder = Recorder(self)
        self._round_uploads: RoundUploads | None = None
        self.set_slow_clients()
        self.privacy = privacy.guarantee(args, self)  # of --proto_noise
        if self.rule is not None:
            self.hp = self.rule.hyperparameters(args)
            self.set_clients(self.rule)

    @property
    def global_params(self) -> Tensors:
        return self.weights.tensors

    @global_params.setter
    def global_params(self, tensors: Tensors) -> None:
        self.weights.tensors = tensors

    # ---- participation -----------------------------------------------------------------------------------------------

    def set_clients(self, clientObj: Any) -> None:
        """Creates the clients 0 .. num_clients - 1."""
        pfllib_host.check_pair(self, clientObj)
        self.clients = self.participation.make_all(clientObj)
        self.participation.describe_faults()
        self.participation.check()

    def set_new_clients(self, clientObj: Any) -> None:
        """Creates the clients that join after training (``-nnc``): the next ids of the data set."""
        ids = range(self.num_clients, self.num_clients + self.num_new_clients)
        self.new_clients = self.participation.make(clientObj, ids)

    def set_slow_clients(self) -> None:
        self.train_slow_clients = self.participation.slow(self.train_slow_rate, "slow training")
        self.send_slow_clients = self.participation.slow(self.send_slow_rate, "slow sending")

    def select_clients(self) -> list[Any]:
        """This round's participants."""
        self.check_interrupt()
        return self.participation.select()

    def active_clients(self) -> list[Any]:
        """Those of them whose upload is not dropped."""
        return self.participation.arriving()

    def deliver(self, message: Tensors) -> None:
        """Through the executor, since to take a message may be work (`Participation.audience` says who does)."""
        audience = self.participation.audience()
        if self.executor:
            self.executor.receive(audience, message, self.current_round)
        else:
            for client in audience:
                client.receive(message, self.current_round)

    # ---- uploads -----------------------------------------------------------------------------------------------------

    @property
    def round_uploads(self) -> RoundUploads:
        """What this round's participants have sent."""
        if self._round_uploads is None or self._round_uploads.round != self.current_round:
            self._round_uploads = RoundUploads(self)
        return self._round_uploads

    def collect(self) -> None:
        """Takes the uploads that arrive in time and are finite; see `RoundUploads`."""
        uploads = self.round_uploads
        uploads.accept([client for client in self.selected_clients if client.id not in uploads.seen])
        if not uploads.clients and not uploads.late:
            raise self.diverged("no upload can be used")
        self.take(uploads.clients, uploads.messages)
        self.bytes_up = uploads.bytes

    def combine(self, names: list[str], messages: list[Tensors], weights: list[float]) -> Tensors:
        return self.round_uploads.combine(names, messages, weights)

    def filter_prototypes(self, prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        return self.round_uploads.filter_prototypes(prototypes, counts)

    @property
    def needs(self) -> tuple[str, ...]:
        """What every upload must hold beside the weights."""
        return CLASS_MEANS if self.method.prototypes else ()

    def knowledge(self, upload: Any) -> dlg.Knowledge:
        """What an upload tells an attacker (``-dlg``)."""
        return dlg.knowledge(self, upload)

    def diverged(self, reason: str) -> DivergedError:
        return faults.divergence(self, reason)

    # ---- rounds ------------------------------------------------------------------------------------------------------

    def rounds(self) -> Iterable[int]:
        """Between rounds memory is freed and checkpoints are written."""
        first = self.checkpoints.begin(self) if self.checkpoints else 0
        for current_round in range(first, self.global_rounds + 1):
            if current_round > first:
                self._between_rounds(current_round)
            yield current_round

    def _between_rounds(self, done: int) -> None:
        if done < self.global_rounds:  # the last uploads stay for whoever looks at the end
            self.uploaded_models, self._round_uploads = [], None
        for client in self.selected_clients:
            client.release()
        if isinstance(self.clients, ManyClients):
            self.clients.rest()
        if self.checkpoints:
            self.checkpoints.round_done(self, done)

    def check_interrupt(self) -> None:
        if not (self.checkpoints and self.checkpoints.every):  # with checkpoints the end is between rounds
            interrupt.check()

    def score_download(self) -> None:
        self.evaluation.after_download()
        self.save_results()

    def train_clients(self) -> None:
        scored = self.current_round % self.eval_gap == 0
        after = self.round_uploads.train_all(scored)
        self.record(rs_bytes_down=self.bytes_down)
        self.recorder.add_clients("rs_joined", [client.id for client in self.selected_clients])
        if scored:
            self.evaluation.after_training(after)

    def end_round(self) -> bool:
        if broken := faults.not_finite(self):
            raise self.diverged(f"the server's {', '.join(broken)} not finite after the aggregation")
        self.round_uploads.examine()
        return self.recorder.round_done()

    def finish(self) -> None:
        if self.num_new_clients > 0:
            newcomers.welcome(self)
        self.save_results()
        self.recorder.close()
        if self.recorder.path:
            self.recorder.save_model()

    def lasting_clients(self) -> list[Any]:
        """Those that hold something that a later round reads."""
        clients = self.clients
        return list(clients.present.values() if isinstance(clients, ManyClients) else clients)

    # ---- evaluation --------------------------------------------------------------------------------------------------

    def test_metrics(self) -> Lists:
        """Per scored client: id, test samples, correct predictions, AUC times samples (PFLlib's four lists)."""
        return self.evaluation.test(self.evaluation.clients)

    def check_done(self, acc_lss: Any, top_cnt: int | None = None, div_value: float | None = None) -> bool:
        return is_done(acc_lss, top_cnt, div_value)

    # ---- records and files -------------------------------------------------------------------------------------------

    def record(self, **values: Any) -> None:
        """Adds one value to each of the named `records`."""
        self.recorder.add(**values)

    def save_results(self) -> None:
        self.recorder.save()

    def final_message(self) -> Tensors:
        """What the model file holds: what the clients got last."""
        return self.last_message
