//! A trainer as a list of one, for functions of one or several.

use super::trainer::Trainer;

impl<'a> From<&'a mut Trainer> for Vec<&'a mut Trainer> {
    fn from(trainer: &'a mut Trainer) -> Self {
        vec![trainer]
    }
}

impl<'a> From<&'a mut Trainer> for Vec<&'a Trainer> {
    fn from(trainer: &'a mut Trainer) -> Self {
        vec![trainer]
    }
}

impl<'a> From<&'a Trainer> for Vec<&'a Trainer> {
    fn from(trainer: &'a Trainer) -> Self {
        vec![trainer]
    }
}
