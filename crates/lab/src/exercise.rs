//! The exercises as they are in the repository, compiled into the program.

use anyhow::{Context, Result};

/// An exercise.
#[derive(Debug)]
pub struct Exercise {
    /// The name of its files, such as `01_get_params`. It begins with its number, which may have a letter: `05b`.
    pub name: &'static str,
    /// The file to fill in. The comment at its beginning is the task, whose first line is the title.
    pub gap: &'static str,
    /// The same file, filled in.
    pub solution: &'static str,
    /// A file with the solution.
    pub solution_file: &'static str,
    /// Some help in two steps: a question, and below an empty line the answer to it.
    pub hint: &'static str,
}

/// Number of exercises, from the first on, that ask for functions that train together.
pub const FUNCTIONS: usize = 5;

/// Number of the first puzzle. The exercises before it are of section 13.5.
pub const FIRST_PUZZLE: usize = 6;

/// All exercises, in order.
pub const ALL: &[Exercise] = include!(concat!(env!("OUT_DIR"), "/exercises.rs"));

impl Exercise {
    /// The exercise with this label, or with a name that begins so: `1` and `01_get` are `01_get_params`.
    ///
    /// ```
    /// assert_eq!(lab::Exercise::find("1")?.name, "01_get_params");
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Errors
    /// If there is none.
    pub fn find(name: &str) -> Result<&'static Self> {
        let labelled = ALL
            .iter()
            .find(|one| one.label() == name.trim_start_matches('0'));
        let found = labelled.or_else(|| {
            let is_number = name.parse::<usize>().is_ok();
            let mut all = ALL.iter();
            all.find(|exercise| !is_number && exercise.name.starts_with(name))
        });
        found.with_context(|| {
            let last = ALL[ALL.len() - 1].label();
            format!("there is no exercise {name:?}: they are 1 to {last}, and 5b")
        })
    }

    /// The two steps of its hint.
    pub fn hints(&self) -> (&'static str, &'static str) {
        let steps = self.hint.trim_end().split_once("\n\n");
        steps.expect("a hint has two steps")
    }

    /// Its number as readers write it: `1`, `5b`.
    pub fn label(&self) -> &'static str {
        let label = self.name.split('_').next().unwrap_or_default();
        label.trim_start_matches('0')
    }

    /// Its number, without a letter.
    pub fn number(&self) -> usize {
        let digits = self.label().trim_end_matches(char::is_alphabetic);
        digits.parse().expect("a name begins with a number")
    }

    /// The title, without its number.
    pub fn title(&self) -> &'static str {
        let line = self.gap.lines().next().unwrap_or_default();
        line.split_once(". ").map_or(line, |(_, title)| title)
    }

    /// The function to write, in exercises 1 to 5: the title up to its colon.
    pub fn function(&self) -> &'static str {
        let title = self.title();
        title
            .split_once(": ")
            .map_or(title, |(function, _)| function)
    }

    /// The task: the comment at the beginning of the file, below the title.
    pub fn task(&self) -> String {
        let lines: Vec<&str> = self
            .gap
            .lines()
            .map_while(|line| line.strip_prefix("//"))
            .map(|line| line.strip_prefix(' ').unwrap_or(line))
            .skip(1)
            .collect();
        lines.join("\n").trim().to_owned()
    }
}
