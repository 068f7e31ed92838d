"""PFLlib's flags, under its names.

Differences from PFLlib, all deliberate: the defaults of -data, -gr, -lr, -dev, -nc and -ncl (the FedCPD paper's
protocol, and what the data set's config.json says); booleans parse, so that `-ld False` is False; -dev takes auto,
cuda:N and mps; values out of range are refused before anything is read.
"""

from typing import Any

from flcore.hyperparams import Setting


def flag(short: str, name: str, default: Any, help: str, *, type: type | None = None, **rules: Any) -> Setting:
    """A flag of these tables; ``type`` if the default does not tell."""
    return Setting(name, type or default.__class__, default, help, short=short, **rules)


GENERAL = (
    flag("-algo", "algorithm", "FedAvg", "method to run"),
    flag("-data", "dataset", "Digits", "data set in --data_dir, made if it can be"),
    flag("-m", "model", "CNN", "network: path/to/net.py:Net, torchvision:NAME or one of"),
    flag("-nc", "num_clients", None, "number of clients; if not given, the data set's", type=int, least=1),
    flag("-ncl", "num_classes", None, "number of classes; if not given, the data set's", type=int, least=1),
    flag("-gr", "global_rounds", 200, "communication rounds", least=0),
    flag("-ls", "local_epochs", 1, "local epochs a round", least=0),
    flag(
        *("-lbs", "batch_size", 10, "samples in a batch; -1: all of a client's"),
        least=1,
        also=(-1,),
        words="1 or more, or -1 for one batch of all samples",
    ),
    flag("-lr", "local_learning_rate", 0.01, "learning rate of the clients", above=0),
    flag("-ld", "learning_rate_decay", False, "multiply the learning rate by -ldg after every round"),
    flag("-ldg", "learning_rate_decay_gamma", 0.99, "factor of -ld", above=0),
    flag("-fs", "few_shot", 0, "training samples kept of each class; 0: all", least=0),
    flag(
        *("-dev", "device", "auto", "auto (cuda if there is one), cpu, cuda, cuda:N or mps"),
        pattern=r"auto|cpu|mps|cuda(:\d+)?",
        words="auto, cpu, cuda, cuda:N or mps",
    ),
    flag(
        *("-did", "device_id", "0", "number of the CUDA card, as in -dev cuda:N"),
        pattern=r"\d+",
        words="the number of one card, such as 0",
    ),
)
PARTICIPATION = (
    flag("-jr", "join_ratio", 1.0, "share of the clients that join a round", above=0, most=1),
    flag("-rjr", "random_join_ratio", False, "draw the number that join, from -jr of them to all"),
    flag("-cdr", "client_drop_rate", 0.0, "share of a round's uploads that are lost, rounded down", least=0, below=1),
    flag("-nnc", "num_new_clients", 0, "clients held back for a test at the end", least=0),
    flag("-ften", "fine_tuning_epoch_new", 0, "fine-tuning epochs of new clients", least=0),
    flag("-tsr", "train_slow_rate", 0.0, "share of the clients that train slowly", least=0, most=1),
    flag("-ssr", "send_slow_rate", 0.0, "share of the clients that send slowly", least=0, most=1),
    flag("-ts", "time_select", False, "leave out uploads that come after -tth"),
    flag("-tth", "time_threthold", 10000, "limit in simulated seconds; implies -ts", type=float, above=0),
)
RESULTS = (
    flag("-go", "goal", "test", "name of the experiment, part of the result's file name"),
    flag("-t", "times", 1, "number of repeats", least=1),
    flag("-pv", "prev", 0, "number of the first repeat", least=0),
    flag("-eg", "eval_gap", 1, "rounds between evaluations", least=1),
    flag("-ab", "auto_break", False, "stop when the accuracy has not risen for -tc evaluations"),
    flag("-tc", "top_cnt", 100, "patience of -ab, in evaluations", least=1),
    flag("-dlg", "dlg_eval", False, "rate how well an attacker rebuilds images from the uploads"),
    flag("-dlgg", "dlg_gap", 100, "rounds between ratings of -dlg", least=1),
    flag("-bnpc", "batch_num_per_client", 2, "batches of a client that -dlg compares with", least=1),
)
# For single methods. A method here that uses one has its own default, range and help (`Settings`); these are PFLlib's,
# for its own client and server files that are run here.
METHODS = (
    flag("-bt", "beta", 0.0, "beta"),
    flag("-lam", "lamda", 1.0, "weight of the regularizer", least=0),
    flag("-mu", "mu", 0.0, "weight of the proximal term", least=0),
    flag("-K", "K", 5, "personal training steps", least=1),
    flag("-lrp", "p_learning_rate", 0.01, "learning rate of the personal model", above=0),
    flag("-M", "M", 5, "models a client downloads", least=1),
    flag("-itk", "itk", 4000, "iterations of the quadratic solver", least=1),
    flag("-alk", "alphaK", 1.0, "step size of the attentive update"),
    flag("-sg", "sigma", 1.0, "width of the similarity", above=0),
    flag("-al", "alpha", 1.0, "alpha"),
    flag("-pls", "plocal_epochs", 1, "epochs of the personal part", least=0),
    flag("-tau", "tau", 1.0, "temperature", above=0),
    flag("-fte", "fine_tuning_epochs", 10, "fine-tuning epochs after training", least=0),
    flag("-dlr", "dr_learning_rate", 0.0, "learning rate of the dual variable", least=0),
    flag("-L", "L", 1.0, "Lipschitz constant", above=0),
    flag("-nd", "noise_dim", 512, "size of the generator's noise", least=1),
    flag("-glr", "generator_learning_rate", 0.005, "learning rate of the generator", above=0),
    flag("-hd", "hidden_dim", 512, "hidden units of the generator", least=1),
    flag("-se", "server_epochs", 1000, "epochs of the server's own training", least=0),
    flag("-lf", "localize_feature_extractor", False, "keep the feature extractor on the client"),
    flag("-slr", "server_learning_rate", 1.0, "learning rate of the server", above=0),
    flag("-et", "eta", 1.0, "learning rate of the aggregation weights", least=0),
    flag("-s", "rand_percent", 80, "percent of the samples used for the local aggregation", least=1, most=100),
    flag("-p", "layer_idx", 2, "number of top layers aggregated adaptively", least=0),
    flag("-mlr", "mentee_learning_rate", 0.005, "learning rate of the mentee", above=0),
    flag("-Ts", "T_start", 0.95, "energy kept by the compression, first round", least=0, most=1),
    flag("-Te", "T_end", 0.98, "energy kept by the compression, last round", least=0, most=1),
    flag("-mo", "momentum", 0.1, "momentum of the running mean", least=0, most=1),
    flag("-klw", "kl_weight", 0.0, "weight of the divergence term", least=0),
    flag("-fsb", "first_stage_bound", 0, "rounds of the first stage", least=0),
    flag("-ca", "fedcross_alpha", 0.99, "share of its own model in a cross-aggregation", least=0, most=1),
    flag("-cmss", "collaberative_model_select_strategy", 1, "choice of the partner model", least=0),
)
# Accepted; nothing here reads them.
IDLE = (
    flag("-sfn", "save_folder_name", "items", "folder of saved models"),
    flag("-fd", "feature_dim", 512, "size of the features", least=1),
    flag("-vs", "vocab_size", 80, "vocabulary of a text data set", least=1),
    flag("-ml", "max_len", 200, "longest text", least=1),
)
OLD_SPELLINGS = {"-nb": "num_classes"}
