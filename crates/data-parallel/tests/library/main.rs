//! The promises of the library, a module for each. Numbers of PyTorch come from `tests/pytorch` of the repository.

// ResNet-18's file says so
extern crate data_parallel_functional as functional;

mod a_bad_minibatch_changes_nothing;
mod a_run_goes_on;
mod batches_have_any_form;
mod buffers_are_one;
mod calls_at_the_wrong_time;
#[path = "../../../data-parallel-functional/tests/operations/hook.rs"]
mod hook;
mod kit;
mod layers_train_right;
mod losses_of_examples;
mod networks_are_deep;
mod numbers_are_looked_at;
mod optimizers_are_pytorchs;
mod own_optimizer;
mod processes_agree;
mod replicas_work_together;
/// The book's ResNet-18.
#[path = "../../../concise/src/resnet.rs"]
mod resnet;
mod states;
mod trainer_takes_any_network;
mod trainers_take_turns;
mod where_replicas_are;
