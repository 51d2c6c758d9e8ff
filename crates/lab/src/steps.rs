//! The right `train_batch`, and six wrong ones: the solution of exercise 4, and wrong answers to it from
//! `tests/wrong/04_train_batch.md`. Exercise 5b tests them.

use crate::training::TrainBatch;

include!(concat!(env!("OUT_DIR"), "/steps.rs"));
