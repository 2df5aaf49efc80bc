"""Each row of the tables that say what a stop keeps, refuses and loses is a test. Reads pages and tests, runs nothing.

A row is known by how its second column begins, and names the tests that fail when it is not true, each with words that
stand in its module where the test has several cases.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGES = TESTS.parent / "docs" / "how-to"
ROW = re.compile(r"^\| (kept|refused|changed|lost) \| (.+?) \| .*\|$", re.MULTILINE)
ANY_ROW = re.compile(r"^\| (?:kept|refused|changed|lost)\b.*", re.MULTILINE)

FIT = "unit/hooks/test_keras_fit.py::test_a_fit_that_was_stopped_twice_ends_bit_for_bit_as_one_that_was_not"
RESIZED = "unit/hooks/test_keras_fit.py::test_a_fit_that_was_reshaped_ends_as_one_that_was_not_but_for_rounding"
FIT_REFUSED = "unit/hooks/test_keras_fit.py::test_what_cannot_be_resumed_exactly_is_told_once_and_never_announced"
FIT_CHANGED = "unit/hooks/test_keras_fit.py::test_what_a_stop_changes_in_a_fit_is_no_more_than_is_said"
UNTRIED = "unit/hooks/test_announced.py::test_what_cannot_be_saved_is_never_announced_and_a_stop_does_not_end_it"
FULL = (
    "unit/hooks/test_announced.py::test_a_disk_that_takes_nothing_withdraws_it_and_one_that_takes_it_again_announces_it"
)
HANDLER = "unit/hooks/test_announced.py::test_a_handler_that_the_script_sets_later_withdraws_it_until_it_is_taken_back"
VARIABLES = "unit/hooks/test_elastic.py::test_its_variables_are_as_they_were_within_an_epoch_and_behind_it"
UNCHANGED = "unit/hooks/test_elastic.py::test_what_the_loop_does_not_change_is_as_the_new_start_makes_it"
ITERATOR = (
    "unit/hooks/test_elastic.py::test_one_that_draws_from_an_iterator_of_its_own_is_refused_before_the_first_stop"
)
BESIDE = "unit/hooks/test_elastic.py::test_a_loop_that_is_read_beside_another_iterator_is_refused_before_the_first_stop"
ORDER = "unit/hooks/test_elastic.py::test_batches_whose_order_may_be_another_one_are_refused_before_the_first_stop"
SWEEPS = "frameworks/test_many_trainings.py"
EXACT = (
    "frameworks/test_resumed_exactly.py::"
    "test_reshaped_at_random_steps_and_while_it_evaluates_it_ends_with_the_same_bits"
)
PLACES = (
    "frameworks/test_places_of_loaders.py::"
    "test_from_each_place_of_an_epoch_all_later_batches_and_random_numbers_are_those_without_a_stop"
)
WORKERS = "frameworks/test_resumed_exactly.py::test_with_workers_each_sample_comes_once_in_each_epoch"
ON_GPUS = (
    "frameworks/test_resumed_exactly.py::test_a_hugging_face_trainer_takes_the_same_steps_on_other_numbers_of_gpus"
)
REFUSED = "frameworks/test_resumed_exactly.py::test_what_cannot_be_resumed_exactly_is_left_alone_and_says_so"
SHARES = (
    "frameworks/test_resumed_exactly.py::"
    "test_a_hugging_face_trainer_whose_gpus_or_processes_do_not_share_as_it_does_is_left_alone"
)
CHANGED = "frameworks/test_resumed_exactly.py::test_what_a_stop_changes_in_a_loop_is_no_more_than_is_said"
ELASTIC = (
    "frameworks/test_resumed_exactly.py::test_elastic_refuses_data_without_an_order_and_processes_that_have_not_met"
)
DDP = "frameworks/test_resumed_exactly.py::test_several_processes_stop_after_one_step_and_go_on_in_more_or_fewer"
SPAWNED = (
    "frameworks/test_announced.py::test_processes_that_a_script_spawns_stop_after_one_step_and_only_one_of_them_speaks"
)
TORCHRUN = "frameworks/test_several_processes.py::test_torchrun_ends_as_its_processes_wherever_it_is_asked_to_stop"
LIGHTNING_LATE = "frameworks/test_announced.py::test_what_lightning_cannot_save_or_be_asked_for_is_said_before_a_stop"
OWN = "frameworks/test_own_values.py::test_lists_counts_and_means_of_the_scripts_own_classes_go_on_after_a_stop"
OF_JAX = "frameworks/test_announced.py::test_states_of_jax_that_hold_functions_and_keys_of_the_loop_resume_exactly"
SHARDED = "frameworks/test_jax.py::test_arrays_over_all_devices_go_on_over_those_that_there_are_now"

BESIDE_CALLBACKS = (
    "frameworks/test_library_objects.py::"
    "test_an_object_of_a_library_that_a_callback_changes_is_named_and_never_announced"
)
LIST_OF_CALLBACKS = (
    "frameworks/test_library_objects.py::"
    "test_a_list_that_a_callback_changes_and_that_cannot_be_kept_is_named_and_never_announced"
)
NOT_KEPT = (
    "unit/hooks/test_values_not_kept.py::test_what_changes_and_cannot_be_kept_is_named_and_withdraws_the_announcement"
)
LARGE = "frameworks/test_large_values.py::test_a_large_variable_that_the_loop_changes_is_named_and_never_announced"
OF_LIBRARIES = "unit/hooks/test_not_given.py::test_an_object_of_a_library_that_changes_is_named_and_never_announced"
BY_OTHER_ADVICE = (
    "unit/hooks/test_not_given.py::test_an_object_that_cannot_be_put_into_a_dictionary_is_named_with_other_advice"
)
NOT_GIVEN = "unit/hooks/test_not_given.py::test_what_changes_and_was_not_given_is_named_once_and_never_announced"
REHEARSED = "frameworks/test_rehearsed.py::test_what_the_pages_call_lost_is_found_by_a_rehearsal"
TRAINED = "frameworks/test_changed_parts.py::test_what_is_trained_and_what_is_frozen_stays_so"
ANOTHER = "frameworks/test_changed_parts.py::test_what_a_new_start_would_not_make_again_is_said_and_trains_on"
AHEAD = "unit/hooks/test_cursor.py::test_a_batch_fetched_before_a_stop_is_made_again_from_what_its_collator_was"

REFERS = "unit/hooks/test_kept_references.py::test_what_refers_to_another_object_refers_to_it_after_a_stop"

# Page -> how a row begins -> its tests, each perhaps followed by ` # words` that stand in that module.
NAMED: dict[str, dict[str, list[str]]] = {
    "tensorflow.md": {
        "the samples and their order": [f"{FIT} # py_dataset", f"{FIT} # own_step", f"{FIT} # several_steps"],
        "callbacks, and the files": [
            "unit/hooks/test_files_of_fits.py::"
            "test_files_of_a_fit_that_was_stopped_also_while_it_validates_are_those_of_one_that_was_not",
            f'{FIT_CHANGED} # "begins": 1',
        ],
        "what callbacks change in the script": [f'{FIT} # "beside"', f"{FIT_CHANGED} # beside_callbacks"],
        "mixed precision": [f"{FIT} # half_precision"],
        "`BackupAndRestore`": [f"{FIT_CHANGED} # backed_up"],
        "several `fit` in a script": [f"{FIT} # fine_tuning"],
        "several scripts in one job": ["unit/hooks/test_keras_claims.py"],
        "random numbers of a script": [
            "unit/hooks/test_keras_fit.py::"
            "test_a_script_without_seeds_that_is_stopped_from_outside_ends_with_the_same_weights"
        ],
        "`MirroredStrategy()` on another": [f"{RESIZED} # resized_dataset"],
        "what was trained when SIGTERM": [f"{FIT_CHANGED} # asked_between"],
        "a Python generator": [f"{FIT_REFUSED} # generator or loader"],
        "a `PyDataset` that is read": [f"{FIT_REFUSED} # by other processes", f"{FIT_REFUSED} # has attributes"],
        "`tf.data` that calls Python": [f"{FIT_REFUSED} # calls Python"],
        "`tf.data` that does not keep": [f"{FIT_REFUSED} # does not keep an order"],
        "`tf.data` that shuffles inside": [f"{FIT_REFUSED} # without a seed inside"],
        "`tf.data` that caches": [f"{FIT_REFUSED} # CacheDataset"],
        "`tf.data` that changes variables": [f"{FIT_REFUSED} # changes variables"],
        "`run_eagerly`": [f"{FIT_REFUSED} # runs eagerly", f"{FIT_REFUSED} # RandomUniform"],
        "a model that the script puts": [f"{FIT_REFUSED} # split among GPU:0"],
        "strategies other than": [f"{FIT_REFUSED} # ParameterServerStrategy"],
        "several processes": [
            f"{FIT_REFUSED} # MultiWorkerMirroredStrategy",
            "frameworks/test_several_processes.py::test_a_fit_of_two_workers_is_left_alone_and_fails_in_keras_itself",
        ],
        "a script that handles SIGTERM": [f"{FIT_REFUSED} # SIGTERM of its own", f"{FIT_REFUSED} # main thread"],
        "a `fit` within `optimize`": [
            "unit/hooks/test_outer_state.py::"
            "test_a_training_within_a_study_in_a_data_base_keeps_its_gpus_and_one_in_memory_does_not"
        ],
        "a backend of Keras": [
            "unit/hooks/test_keras_fit.py::test_a_fit_of_another_backend_is_left_alone_with_a_sentence"
        ],
        "an object of a library that the script": [BESIDE_CALLBACKS],
        "a list that callbacks change": [LIST_OF_CALLBACKS],
        "a save that fails": [FULL, HANDLER],
        "batches of the broken epoch": [
            "unit/hooks/test_keras_fit.py::"
            "test_a_resumed_fit_traces_its_step_once_and_makes_no_iterator_of_epochs_that_are_done"
        ],
        "what a `map` of `tf.data` draws": [f"{FIT_CHANGED} # drawn_in_a_map"],
        "sums over replicas": [f"{RESIZED} # ROUNDING = 1e-5"],
        "other `tf.data` whose batch": [f"{FIT_CHANGED} # 22 steps per epoch instead of 6"],
        "data that differ": [
            "unit/hooks/test_keras_fit.py::test_a_checkpoint_of_other_data_is_refused_with_a_sentence"
        ],
        "training outside of `fit`": [f"{FIT_CHANGED} # trained_outside"],
    },
    "pytorch.md": {
        "what Elastic is given": [f"{EXACT} # torch_loop.py"],
        "random numbers of Python": [
            "unit/hooks/test_elastic.py::test_it_goes_on_with_the_next_step_and_the_next_random_number",
            "unit/hooks/test_elastic.py::test_numpys_generators_and_arrays_go_on",
            f"{EXACT} # torch_accumulation.py",
        ],
        "meters and other objects": ["unit/hooks/test_elastic.py::test_a_meter_of_a_library_goes_on"],
        "`persistent_workers=True`": [f"{WORKERS} # two-that-stay"],
        "the order of a DataLoader": [f"{WORKERS} # two-that-stay", PLACES],
        "`Accelerator()`": [f"{EXACT} # accelerate_loop.py"],
        "gradients of several batches": [f"{EXACT} # torch_accumulation.py"],
        "variables that the loop has changed": [
            VARIABLES,
            "unit/hooks/test_elastic.py::test_lists_numbers_and_slots_of_the_scripts_own_classes_go_on",
            "unit/hooks/test_large_variables.py::test_arrays_that_the_loop_changes_in_place_go_on",
            f"{CHANGED} # large tensors and parameters go on",
            "unit/hooks/test_kept_identities.py::test_objects_of_a_class_within_a_function_go_on",
        ],
        "which of these are one and the same object": [
            "unit/hooks/test_kept_identities.py::test_what_is_one_object_is_one_after_a_stop"
        ],
        "what refers to another object": [
            REFERS,
            "unit/hooks/test_kept_references.py::"
            "test_what_cannot_be_found_again_is_named_and_does_not_end_by_a_stop",
        ],
        "variables of the script's own modules": [
            "unit/hooks/test_script_modules.py::test_variables_of_imported_modules_go_on",
            "unit/hooks/test_script_modules.py::"
            "test_a_module_that_made_what_cannot_be_kept_is_left_alone_which_is_said_once",
        ],
        "time that the script measures": [
            "unit/hooks/test_elastic.py::test_time_that_a_script_measures_goes_on_without_the_pauses",
            "unit/hooks/test_elastic.py::test_time_that_has_passed_before_a_stop_has_passed_after_it",
            "unit/hooks/test_elastic.py::test_a_deadline_that_is_the_same_at_each_start_stays_where_it_is",
        ],
        "which parameters are trained": [TRAINED],
        "plain attributes of the script's own": [f"{OWN} # torch_own.py", TRAINED],
        "arrays and keys of JAX": [f"{OF_JAX} # jax_variables.py"],
        "what the script prepares in an epoch": [
            "unit/hooks/test_elastic.py::test_what_an_epoch_prepares_before_its_batches_is_done_once"
        ],
        "what the script's functions and classes": [
            "unit/hooks/test_elastic.py::test_what_functions_and_classes_keep_between_their_calls_goes_on",
            "unit/hooks/test_large_variables.py::"
            "test_a_function_or_class_that_the_loop_puts_in_place_of_another_one_goes_on",
            f"{REFERS} # switched functions",
        ],
        "`enumerate(state.batches": [f"{VARIABLES} # COUNTS"],
        "several trainings in one job": ["unit/hooks/test_claims.py", SWEEPS],
        "files that the script writes": ["unit/hooks/test_files.py"],
        "several processes, on another": [DDP],
        "a save that takes longer than torchrun": [TORCHRUN],
        "processes that the script starts": [SPAWNED],
        "FSDP, DeepSpeed": [
            "frameworks/test_several_processes.py::test_elastic_refuses_a_model_of_which_each_process_has_a_part"
        ],
        "processes that have not met": [f"{ELASTIC} # have not met yet"],
        "a script with a handler": ["unit/hooks/test_elastic.py::test_a_script_that_handles_sigterm_itself_is_refused"],
        "`Elastic`, or its loop, in a thread": [
            "unit/hooks/test_elastic.py::test_one_in_a_thread_is_refused_and_its_process_fails"
        ],
        "an iterator of the script": [
            ITERATOR,
            "unit/hooks/test_held_iterators.py::"
            "test_one_that_is_held_elsewhere_and_read_ends_the_script_at_its_first_step",
        ],
        "an iterator in a module": [
            "unit/hooks/test_script_modules.py::"
            "test_an_iterator_of_a_module_that_the_loop_reads_keeps_the_training_from_being_stopped",
            "unit/hooks/test_held_iterators.py::"
            "test_one_that_the_loop_makes_later_is_named_and_the_training_goes_on",
        ],
        "a loop that is read together with": [BESIDE],
        "a second `state.epochs(...)`": [
            "unit/hooks/test_second_loops.py::test_a_second_loop_that_would_do_nothing_ends_with_a_sentence",
            "unit/hooks/test_second_loops.py::test_what_the_sentence_asks_for_goes_on_after_each_stop",
        ],
        "a stream": [f"{ELASTIC} # are a stream"],
        "a loader that is no DataLoader": [ORDER, f"{ELASTIC} # come from a tqdm"],
        "a state that cannot be pickled": [UNTRIED],
        "another optimizer, scheduler or model": [
            ANOTHER,
            f"{ANOTHER} # another layer",
            f"{ANOTHER} # of another type",
        ],
        "an optimizer, a scheduler, a metric": [NOT_GIVEN, f"{ANOTHER} # one that was not given"],
        "a later save that fails": [FULL, HANDLER],
        "what DataLoader workers draw": [CHANGED],
        "code before and between": [
            "unit/hooks/test_files.py::"
            "test_what_stands_between_trainings_is_done_again_at_each_start_and_its_rows_are_there_once"
        ],
        "what follows the batches": [f"{CHANGED} # what follows an epoch runs again"],
        "the order in which a set gives": [
            "unit/hooks/test_kept_identities.py::test_a_set_holds_the_same_and_sorted_gives_the_same_order"
        ],
        "variables that the loop has not": [UNCHANGED],
        "another model, optimizer": [
            "unit/hooks/test_claims.py::test_a_checkpoint_of_other_parameters_is_a_new_training_with_a_sentence"
        ],
        "another number of processes": [
            DDP, "unit/hooks/test_gradients.py::test_another_number_of_processes_has_the_mean_of_all"
        ],
        "a batch that does not divide": [f"{SPAWNED} # does not divide by 2 processes"],
        "a batch that follows": [
            "frameworks/test_resumed_exactly.py::"
            "test_a_batch_that_follows_the_number_of_processes_goes_on_at_the_same_sample"
        ],
        "a queue that holds something": [f"{BY_OTHER_ADVICE} # a queue"],
        "`os.environ`": [
            "unit/hooks/test_elastic.py::test_what_is_in_no_variable_of_the_loop_begins_anew",
            REHEARSED,
        ],
        "memory that no array shows": [
            "unit/hooks/test_not_given.py::test_memory_that_changes_and_that_nothing_keeps_is_named_and_never_announced"
        ],
        "a list that the loop changes": [
            NOT_KEPT,
            "unit/hooks/test_large_variables.py::test_one_that_has_no_name_is_named_and_does_not_end_by_a_stop",
            "unit/hooks/test_kept_identities.py::"
            "test_those_whose_class_a_new_start_does_not_find_are_named_and_do_not_end_by_a_stop",
        ],
        "more than 256 MiB": [
            LARGE,
            f"{NOT_KEPT} # at the end of a long list",
            "unit/hooks/test_large_variables.py::"
            "test_what_is_too_large_is_named_where_it_changes_and_does_not_end_by_a_stop",
        ],
        "what a data set of the script": [
            "frameworks/test_large_values.py::test_what_a_data_set_has_cached_is_told_and_no_reason_to_keep_gpus"
        ],
        "an object of a library that has": [
            OF_LIBRARIES,
            f"{BY_OTHER_ADVICE} # what cannot be pickled",
            "unit/hooks/test_not_given.py::test_an_object_that_is_too_large_to_be_compared_keeps_its_gpus",
        ],
        "objects of libraries that have no": [OF_LIBRARIES],
    },
    "hugging-face.md": {
        "weights, optimizer, scheduler": [f"{EXACT} # hf_trainer.py", f"{EXACT} # lightning_fit.py"],
        "the order of the samples": [WORKERS],
        "an evaluation or validation": [f"{EXACT} # EVALUATES"],
        "accumulation of gradients": [f"{EXACT} # accumulate_grad_batches", f"{TRAINED} # by hand"],
        "Hugging Face: what it writes": [EXACT],
        "Lightning: ModelCheckpoint": [f"{EXACT} # lightning_fit.py"],
        "Lightning: loggers": [f"{OWN} # the same rows, in the same folders"],
        "what the script's own callbacks": [f"{OWN} # lightning_own.py", f"{OWN} # hf_own.py"],
        "time that the script and its callbacks measure": [f"{OWN} # time that its callbacks measure"],
        "which parameters are trained": [f"{TRAINED} # HUGGING_FACE", f"{TRAINED} # finetuning"],
        "the beginning of an epoch": [f"{TRAINED} # HUGGING_FACE"],
        "Lightning: what a callback sets": [f"{TRAINED} # accumulates", f"{TRAINED} # averages"],
        "what a collator or data set": [AHEAD],
        "`persistent_workers=True`": [f"{WORKERS} # two-that-stay"],
        "an object of a library that the script": [BESIDE_CALLBACKS],
        "a list that callbacks change": [LIST_OF_CALLBACKS],
        "parameter groups that an optimizer gets": [f"{ANOTHER} # another group"],
        "Lightning: loaders that a module": [f"{TRAINED} # loaders made anew", f"{TRAINED} # loaders made once"],
        "Hugging Face: the patience": [f"{OWN} # one stops early"],
        "variables of the script": [f"{OWN} # hf_own.py"],
        "`SFTTrainer` of TRL": [
            "frameworks/test_announced.py::test_a_trainer_of_trl_that_writes_beside_its_checkpoints_resumes_exactly"
        ],
        "several trainings in one job": [SWEEPS],
        "Hugging Face on another number of GPUs, in": [ON_GPUS],
        "what was trained when SIGTERM": [f"{EXACT} # AFTER"],
        "Lightning in several processes": [
            "frameworks/test_several_processes.py::"
            "test_lightning_in_two_processes_is_left_alone_and_trains_to_its_end"
        ],
        "FSDP, DeepSpeed": [f"{SHARES} # (FSDP, DeepSpeed)"],
        "layers on several GPUs": [f"{REFUSED} # split among several GPUs"],
        "a stream": [f"{REFUSED} # a stream"],
        "a loader that is no DataLoader": [f"{REFUSED} # a DataLoader", f"{REFUSED} # several DataLoaders"],
        "a script that resumes by itself": [
            f"{REFUSED} # resume_from_checkpoint", f"{REFUSED} # ckpt_path", f"{REFUSED} # OnExceptionCheckpoint"
        ],
        "a script with a handler": [f"{REFUSED} # handler for SIGTERM"],
        "a search for hyperparameters": [f"{SHARES} # searches for hyperparameters"],
        "Hugging Face: `ignore_data_skip`": [f"{REFUSED} # ignore_data_skip"],
        "Lightning: `fast_dev_run`": [f"{REFUSED} # fast_dev_run"],
        "Lightning: `LearningRateFinder`": [f"{REFUSED} # LearningRateFinder"],
        "Lightning: `ModelPruning`": [f"{REFUSED} # ModelPruning"],
        "`GRPOTrainer`": [f"{REFUSED} # generated for several steps"],
        "Hugging Face on several GPUs": [
            f"{SHARES} # BatchNorm", f"{SHARES} # outputs of all GPUs", f"{SHARES} # average_tokens_across_devices"
        ],
        "Hugging Face under torchrun": [
            f"{SHARES} # in several pods", f"{SHARES} # own DataLoader", f"{SHARES} # accelerator_config"
        ],
        "what the library cannot save": [f"{LIGHTNING_LATE} # unpicklable"],
        "a handler for SIGTERM that": [f"{LIGHTNING_LATE} # handler", FULL],
        "what an object of the script": [f"{OWN} # figure of History begins anew"],
        "what DataLoader workers draw": [CHANGED],
        "Hugging Face on another number of GPUs: sums": [f"{ON_GPUS} # ROUNDING"],
        "Hugging Face on more GPUs": [f"{ON_GPUS} # goes no faster on more GPUs"],
    },
    "jax.md": {
        "arrays, keys of `jax.random`": [OF_JAX, SHARDED],
        "a dictionary that each step recreates": [
            "unit/hooks/test_elastic.py::test_a_dictionary_that_each_step_makes_anew_goes_on"
        ],
        "such a dictionary that another": [
            "unit/hooks/test_elastic.py::"
            "test_one_that_would_not_go_on_is_not_saved_which_is_said_before_the_first_stop"
        ],
        "a `TrainState` of Flax": [f"{OF_JAX} # equinox"],
        "modules, optimizers, metrics": [f"{OF_JAX} # nnx"],
        "modules and optimizers of Flax NNX": [f"{NOT_GIVEN} # other (Part)"],
        "arrays that are split": [SHARDED],
        "variables of Python": [VARIABLES, "unit/hooks/test_files.py"],
        "several processes": [
            "frameworks/test_jax.py::test_processes_that_have_met_by_jax_are_refused_with_a_sentence"
        ],
        "an iterator that the loop reads": [ITERATOR],
        "a loop that is read together with": [BESIDE],
        "data whose order may": [ORDER],
        "what cannot be pickled": [UNTRIED],
        "variables that the loop has not": [UNCHANGED],
        "arrays in variables of the loop": [f"{SHARDED} # what is large and in no dictionary goes on, too"],
        "more than 256 MiB of arrays": [LARGE],
    },
}  # fmt: skip


@cache
def names_of_tests(module: Path) -> set[str]:
    tree = ast.parse(module.read_text(encoding="utf-8"), str(module))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def fault(named: str) -> str:
    """Say what is wrong with a test that a row names; empty if nothing is."""
    where, _, words = named.partition(" # ")
    file, _, test = where.partition("::")
    module = TESTS / file
    if not module.is_file() or not (test in names_of_tests(module) if test else names_of_tests(module)):
        return f"there is no test {where}"
    return "" if words in module.read_text(encoding="utf-8") else f"{file} does not hold the words {words!r}"


@pytest.mark.parametrize("page", NAMED)
def test_each_row_of_what_is_kept_refused_and_lost_names_its_tests(page: str) -> None:
    text = (PAGES / page).read_text(encoding="utf-8")
    rows = [what for _, what in ROW.findall(text)]
    assert len(rows) == len(ANY_ROW.findall(text)), "each row has three columns"
    assert {kind for kind, _ in ROW.findall(text)} >= {"kept", "refused", "changed"}
    known = {row: [begin for begin in NAMED[page] if row.startswith(begin)] for row in rows}
    assert {row: begins for row, begins in known.items() if len(begins) != 1} == {}, "a row without tests, or with two"
    assert set(NAMED[page]) == {begins[0] for begins in known.values()}, "tests of a row that is not there any more"
    assert [why for tests in NAMED[page].values() for one in tests if (why := fault(one))] == []
