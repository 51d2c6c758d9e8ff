//! Puzzles: the reader writes a [`Schedule`], and [`check`] says whether it is an all-reduce, and whether it reaches its
//! goals.

use std::time::Duration;
use std::{env, fs};

use anyhow::{Error, Result, bail, ensure};
use collective::cost::Link;
use collective::{Partial, Schedule, Sum};

use crate::answer::EXPORT;

/// `by` adds the chunks of `others` to its own, and keeps the sum.
pub fn add(by: usize, others: &[usize], chunk: usize) -> Sum {
    Sum::new(by, [&[by], others].concat(), chunk)
}

/// `by` copies the chunk of another member.
pub fn copy(by: usize, other: usize, chunk: usize) -> Sum {
    Sum::new(by, vec![other], chunk)
}

/// Goal that a schedule has to reach. N is the size of the data in bytes.
pub enum Goal<'a> {
    /// At most this many messages one after the other: those of the busiest member of each round.
    Messages(usize),
    /// At most this share of N through the busiest member of each round, in all rounds together.
    Bytes(f64),
    /// At most this many milliseconds for N = 1 MB, with these links from member to member.
    Ms(f64, &'a dyn Fn(usize, usize) -> Link),
    /// At most this share of N leaves each host; the function says on which host a member is.
    Leaves(f64, &'a dyn Fn(usize) -> usize),
    /// Messages go only from a member to another for which this holds.
    Only(&'a dyn Fn(usize, usize) -> bool),
    /// Every chunk is summed in this order.
    Order(&'a str),
}

/// The check of a puzzle whose answer is a function `schedule`: the number of members, and the goals.
#[macro_export]
macro_rules! puzzle {
    ($members:literal, $goals:expr) => {
        pub fn check() -> anyhow::Result<()> {
            use $crate::puzzle::Goal;
            $crate::puzzle::check(&super::exercise::schedule(), $members, &$goals)
        }
    };
}

/// Checks that a schedule is an all-reduce of `members` that reaches all goals.
///
/// # Errors
/// If not: a sentence, and a picture of the rounds below it.
pub fn check(schedule: &Schedule, members: usize, goals: &[Goal]) -> Result<()> {
    if let Some(file) = env::var_os(EXPORT) {
        fs::write(file, schedule.json())?;
    }
    let found = schedule.members;
    ensure!(
        found == members,
        "Your schedule has {found} members. The puzzle has {members}."
    );
    schedule.check_rounds().map_err(Error::msg)?;
    for Sum { by, to, .. } in schedule.rounds.iter().flatten() {
        ensure!(
            *to == [*by],
            "Member {by} writes to {to:?}. A device writes only its own memory: others copy from it."
        );
    }
    schedule
        .check()
        .map_err(Error::msg)
        .and_then(|()| goals.iter().try_for_each(|goal| reach(schedule, goal)))
        .map_err(|wrong| Error::msg(format!("{wrong}\n\n{}", draw(schedule))))
}

/// Checks that an all-reduce reaches a goal.
fn reach(schedule: &Schedule, goal: &Goal) -> Result<()> {
    let link = |latency, bytes_per_second| Link {
        latency: Duration::from_secs(latency),
        bytes_per_second,
    };
    let bytes = 16 * schedule.chunks; // whole chunks
    let time = |latency, speed| schedule.time(bytes, |_, _| link(latency, speed));
    let messages = || schedule.rounds.iter().flatten().flat_map(Sum::messages);
    match goal {
        Goal::Messages(most) => {
            let all = time(1, f64::INFINITY).as_secs();
            ensure!(
                all <= *most as u64,
                "It is an all-reduce with {all} messages one after the other. The goal is {most}."
            );
        }
        Goal::Bytes(most) => {
            let all = time(0, bytes as f64).as_secs_f64();
            ensure!(
                all < most + 1e-6,
                "It is an all-reduce with {all:.2} N through the busiest members. The goal is {most:.2} N."
            );
        }
        Goal::Ms(most, link) => {
            let ms = schedule.time(1_000_000, link).as_secs_f64() * 1e3;
            ensure!(
                ms <= *most,
                "It is an all-reduce that takes {ms:.2} ms. The goal is {most:.2} ms."
            );
        }
        Goal::Leaves(most, host) => {
            for member in 0..schedule.members {
                let crosses =
                    |(from, to, _): &_| host(*from) == host(member) && host(*to) != host(member);
                let share = messages().filter(crosses).count() as f64 / schedule.chunks as f64;
                ensure!(
                    share < most + 1e-6,
                    "It is an all-reduce, but {share:.2} N leaves host {}. The goal is {most:.2} N.",
                    host(member)
                );
            }
        }
        Goal::Only(may) => {
            let not = messages().find(|(from, to, _)| !may(*from, *to));
            if let Some((from, to, chunk)) = not {
                bail!("Chunk {chunk} goes from member {from} to member {to}, which have no link.");
            }
        }
        Goal::Order(right) => {
            let held = schedule.held().pop().unwrap_or_default();
            let mut sums = held[0].iter().map(Partial::to_string);
            if let Some(sum) = sums.find(|sum| sum != right) {
                bail!("A chunk is summed as {sum}, so its bits may differ from those of {right}.");
            }
        }
    }
    Ok(())
}

/// Draws what the members hold of each chunk after each round: the higher the bar, the more values are in the sum.
fn draw(schedule: &Schedule) -> String {
    let bars: Vec<char> = "▁▂▃▄▅▆▇█".chars().collect();
    let bar = |sum: &Partial| {
        bars[(bars.len() * sum.ranks.len().min(schedule.members) - 1) / schedule.members]
    };
    let width = schedule.chunks.max(2) + 2;
    let mut lines =
        vec!["A block is a chunk. Its height: how many values are in the sum.".to_owned()];
    let members = (0..schedule.members).map(|member| format!("{member:<width$}"));
    lines.push(format!("member   {}", members.collect::<String>()));
    for (round, held) in schedule.held().iter().enumerate() {
        let name = match round {
            0 => "start".to_owned(),
            _ => format!("round {round}"),
        };
        let members = held.iter().map(|chunks| {
            let chunks: String = chunks.iter().map(bar).collect();
            format!("{chunks:<width$}")
        });
        lines.push(format!("{name:<9}{}", members.collect::<String>()));
    }
    let ends: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    ends.join("\n")
}
