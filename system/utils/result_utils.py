"""PFLlib's names for the mean of repeats."""

from flcore.utils.result_utils import average_data, get_all_results_for_one_algo, read_data_then_delete

__all__ = ["average_data", "get_all_results_for_one_algo", "read_data_then_delete"]
