"""PFLlib's four functions, for a generate_<Name>.py in PFLlib's style."""

from flcore.data.dataset_utils import check, save_file, separate_data, split_data

__all__ = ["check", "save_file", "separate_data", "split_data"]
