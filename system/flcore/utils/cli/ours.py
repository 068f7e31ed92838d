"""The flags that this framework adds, for all methods. What a single method adds stands beside its rule."""

from pathlib import Path

from flcore.utils import paths
from flcore.utils.cli.pfllib import flag

GENERAL = (
    flag("-sd", "seed", 0, "seed of all randomness", least=0, most=2**63 - 1, words="from 0 to 2**63 - 1"),
    flag(
        *("-ex", "executor", "auto", "how the clients of a round are run"),
        choices=("auto", "loop", "threads", "stacked", "ray", "flower"),
    ),
    flag("", "ray_address", None, "cluster for -ex ray, such as auto; if not given, this machine", type=str),
    flag("", "ray_actors", 0, "processes of -ex ray; 0: one a GPU with -dev cuda, else one a core", least=0),
    flag("", "ray_sums", False, "each process of -ex ray sends one sum of its clients' weights; not to the last bit"),
    flag("", "stack_size", "auto", "clients at once with -ex stacked", type=int, least=1, also=("auto",)),
    flag("", "num_threads", 1, "threads inside one operation on the CPU", least=1, most=1024),
    flag("", "state_dir", None, "folder for what clients keep between rounds, instead of memory", type=Path),
    flag("", "state_cache", 64, "clients in memory with --state_dir; take at least one a core", least=1),
    flag(
        *("", "validation", 0.0),
        "share of every client's training part on which it is tested, in place of its test part: for choosing settings",
        least=0,
        below=1,
    ),
    flag("", "data_dir", paths.DATASET, "folder of the data sets", type=Path),
    flag("", "config", None, "TOML file of flags by their long names; those on the command line win", type=Path),
    flag("", "quiet", False, "print warnings and the summary alone"),
    flag("", "log", None, "file to which all messages are added, also details and with --quiet", type=Path),
    flag("-v", "verbose", False, "print details, such as who took part in a round"),
)
NETWORK = (
    flag("", "model_args", "", "arguments of the network, such as 'width=32, act=\"relu\"', or a JSON object"),
    flag("", "head", "", "name of the network's last layer; if not given, it is found"),
    flag("", "pretrained", None, "file of initial weights: .safetensors, or a state_dict of torch.save", type=Path),
    flag("", "optimizer", "sgd", "what the clients train with", choices=("sgd", "adam", "adamw")),
    flag("", "local_momentum", 0.0, "momentum of --optimizer sgd", least=0, below=1),
    flag("", "weight_decay", 0.0, "weight decay of --optimizer", least=0),
)
PROTOTYPES = (
    flag("", "proto_min_count", 1, "samples a class needs for its prototype to go up", least=1),
    flag("", "proto_noise", 0.0, "noise multiplier for uploaded prototypes; 0: off", least=0),
    flag("", "proto_clip", 5.0, "longest embedding with --proto_noise (L2)", above=0),
    flag("", "dp_delta", 1e-5, "delta at which --proto_noise's epsilon is told", above=0, below=1),
)
FAULTS = (
    flag("", "on_nan", "skip", "what to do with a client of NaN or infinite values", choices=("skip", "stop")),
    flag("", "label_noise", 0.0, "share of every client's training labels made wrong", least=0, most=1),
    flag("", "attack", "none", "what attackers do", choices=("none", "signflip", "noise", "labelflip")),
    flag("", "attack_rate", 0.2, "share of the clients that attack, with --attack", least=0, most=1),
    flag("", "attack_scale", 4.0, "strength of signflip and noise, in updates", above=0),
    flag(
        *("", "aggregate", "mean", "how uploads are combined; the others bear attackers"),
        choices=("mean", "median", "trimmed", "krum"),
    ),
    flag("", "trim", 0.3, "share of the uploads that trimmed and krum take for wrong", least=0, below=0.5),
)
RESULTS = (
    flag("", "results_dir", paths.RESULTS, "folder of the results", type=Path),
    flag("", "save_models", "last", "the clients' trained models beside the result", choices=("none", "last")),
    flag("", "tensorboard", False, "TensorBoard's event files in tensorboard/ beside the results"),
    flag("", "wandb", False, "a run of Weights & Biases for each repeat"),
    flag("", "mlflow", False, "a run of MLflow for each repeat; in mlflow.db beside the results unless a URI is set"),
    flag("", "eval_clients", 0, "score only so many clients, always the same, drawn by the seed; 0: all", least=0),
    flag("", "overwrite", False, "replace a result of the same name, also a finished one"),
    flag("", "reuse", False, "keep a finished result of the same settings and code; no new run"),
    flag("", "checkpoint_every", 0, "rounds between checkpoints, which go when the run is finished; 0: none", least=0),
    flag("", "keep_checkpoint", False, "keep a checkpoint of the last round, to go on with a larger -gr"),
    flag(
        *("", "resume", False),
        "go on after the last checkpoint of the unfinished run of these settings, or of one with fewer rounds (-gr); "
        "finished ones stay as they are",
    ),
)
# A flag that does nothing while another one is off: its name -> that other one, and the value which is off.
NEEDS = {
    "attack_rate": ("attack", "none"),
    "attack_scale": ("attack", "none"),
    "trim": ("aggregate", "mean"),
    "proto_clip": ("proto_noise", 0),
    "dp_delta": ("proto_noise", 0),
    "state_cache": ("state_dir", ""),
    "dlg_gap": ("dlg_eval", False),
    "batch_num_per_client": ("dlg_eval", False),
}
