//! The reader's schedule of a puzzle on threads, in turns with the four algorithms of `collective`.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use collective::cost::Link;
use collective::{Algorithm, GroupOptions, Member, Schedule, Sum, group, group_by};
use serde::Deserialize;

/// The elements of ResNet-18's gradients: 44.7 MB.
pub const RESNET18: usize = 11_175_818;

/// Number of times that each all-reduce is timed, after one turn to warm up.
const TURNS: usize = 11;

/// A schedule as [`Schedule::json`] writes it.
#[derive(Deserialize)]
struct Json {
    members: usize,
    chunks: usize,
    rounds: Vec<Vec<JsonSum>>,
}

#[derive(Deserialize)]
struct JsonSum {
    by: usize,
    from: Vec<usize>,
    to: Vec<usize>,
    chunk: usize,
    in_pairs: bool,
}

impl From<Json> for Schedule {
    fn from(json: Json) -> Self {
        let sum = |sum: JsonSum| Sum {
            by: sum.by,
            from: sum.from,
            to: sum.to,
            chunk: sum.chunk,
            in_pairs: sum.in_pairs,
        };
        let rounds = json.rounds.into_iter();
        Self {
            members: json.members,
            chunks: json.chunks,
            rounds: rounds
                .map(|round| round.into_iter().map(sum).collect())
                .collect(),
        }
    }
}

/// Milliseconds of each turn, the fastest first.
struct Times(Vec<f64>);

impl Times {
    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }
}

/// An all-reduce of the race.
struct Entry {
    name: String,
    /// Prediction of the cost model.
    model: Duration,
    /// Number of times that all threads together read and write the data of one.
    moved: f64,
}

/// A table of the schedule of `json` beside star, owner, ring and tree, each with `len` elements for a thread: what was
/// measured, and what the cost model predicts.
///
/// # Errors
/// If the schedule is no all-reduce, or its sums are wrong.
pub fn race(json: &str, len: usize) -> Result<String> {
    let yours: Schedule = serde_json::from_str::<Json>(json)?.into();
    let k = yours.members;
    let bytes = len * size_of::<f32>();
    let link = link_here(len)?;
    // what devices do, and what threads do
    let entry = |name: &str, on_devices: &Schedule, in_memory: &Schedule| Entry {
        name: name.to_owned(),
        model: on_devices.time(bytes, |_, _| link),
        moved: moved(in_memory),
    };
    let mut entries = vec![entry("yours", &yours, &yours)];
    let mut groups = vec![group_by(yours, GroupOptions::default()).map_err(Error::msg)?];
    for algorithm in Algorithm::ALL {
        let [on_devices, in_memory] =
            [Schedule::new, Schedule::in_shared_memory].map(|schedule| schedule(algorithm, k));
        entries.push(entry(&algorithm.to_string(), &on_devices, &in_memory));
        groups.push(group_of(algorithm, k));
    }
    let times = in_turns(groups, len)?;
    let cores = d2l::cores();
    let mut text = format!(
        "{k} threads on {cores} cores, {:.1} MB for each. {TURNS} calls of each, in turns.\n\n\
         {:5}{:>15}{:>17}{:>13}{:>17}\n",
        bytes as f64 / 1e6,
        "",
        "measured, ms",
        "from – to",
        "model, ms",
        "moved in memory"
    );
    for (Entry { name, model, moved }, times) in entries.iter().zip(&times) {
        let range = format!("{:.2} – {:.2}", times.0[0], times.0[times.0.len() - 1]);
        let median = times.median();
        let model = model.as_secs_f64() * 1e3;
        text += &format!("{name:5}{median:>15.2}{range:>17}{model:>13.2}{moved:>15.1} N\n");
    }
    Ok(text + &why_they_differ(&link, k, cores))
}

/// Number of times that all sums together read and write the data of one member.
fn moved(schedule: &Schedule) -> f64 {
    let sums = schedule.rounds.iter().flatten();
    let vectors = sums.map(|sum| sum.from.len() + sum.to.len()).sum::<usize>();
    vectors as f64 / schedule.chunks as f64
}

fn why_they_differ(link: &Link, k: usize, cores: usize) -> String {
    let mut text = format!(
        "\nN is the data of one thread. The model is for devices with links, which are all alike: a\n\
         message of n bytes takes α + n/β. Here a star of two threads gave α = {:.1} µs and\n\
         β = {:.1} GB/s. But threads share one memory:\n\n\
         * What they read and write counts (the last column), not what goes over a link. The owner\n\
         \x20 moves least: it reads each value once, and writes the sum once into each member.\n\
         * All threads use the same path to memory, so twice the threads are not twice as fast.\n",
        link.latency.as_secs_f64() * 1e6,
        link.bytes_per_second / 1e9
    );
    if k > 2 {
        text += "* All can read a sum at the same time. The model sends it to one after the other, so it\n\
                 \x20 expects too much time of the star's second round.\n";
    }
    if k > cores {
        text += &format!(
            "* {k} threads share {cores} cores, so not all sums of a round run at the same time.\n"
        );
    }
    text.trim_end().to_owned()
}

/// A message here: half of a star of two threads, in which one message follows the other.
fn link_here(len: usize) -> Result<Link> {
    let message = |len| -> Result<f64> {
        let times = in_turns(vec![group_of(Algorithm::Star, 2)], len)?;
        Ok(times[0].median() / 1e3 / 2.0)
    };
    let latency = message(1)?;
    let whole = message(len)?;
    let bytes = (len * size_of::<f32>()) as f64;
    Ok(Link {
        latency: Duration::from_secs_f64(latency),
        bytes_per_second: bytes / (whole - latency).max(1e-9),
    })
}

fn group_of(algorithm: Algorithm, k: usize) -> Vec<Member> {
    group(
        k,
        GroupOptions {
            algorithm,
            ..GroupOptions::default()
        },
    )
}

/// The times of each group's all-reduce of `len` elements, one call of each in turn. All sums are checked.
fn in_turns(groups: Vec<Vec<Member>>, len: usize) -> Result<Vec<Times>> {
    let k = groups[0].len();
    let count = groups.len();
    // a thread has a place in each group
    let mut seats: Vec<Vec<Member>> = (0..k).map(|_| Vec::new()).collect();
    for members in groups {
        seats
            .iter_mut()
            .zip(members)
            .for_each(|(seat, member)| seat.push(member));
    }
    let times = thread::scope(|scope| {
        let threads = seats.into_iter().map(|mut seat| {
            scope.spawn(move || {
                let times = turns(&mut seat, len)?;
                Ok((times, seat)) // a seat that is dropped leaves its groups: only when all are done
            })
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect::<Result<Vec<_>>>()
    })?;
    let (mut times, _) = times.into_iter().next().context("no member")?;
    ensure!(times.len() == count, "a group was not timed");
    times.iter_mut().for_each(|all| all.sort_by(f64::total_cmp));
    Ok(times.into_iter().map(Times).collect())
}

/// Milliseconds of the calls of each group. The time of a call is that of the slowest thread.
fn turns(seat: &mut [Member], len: usize) -> Result<Vec<Vec<f64>>> {
    let mut data = vec![0f32; len];
    let mut times = vec![Vec::new(); seat.len()];
    for turn in 0..=TURNS {
        for (member, times) in seat.iter_mut().zip(&mut times) {
            let rank = member.rank();
            let k = member.size();
            data.fill((1 + rank + turn) as f32); // small whole numbers: exact in any order
            member.barrier()?; // an early thread may sleep here,
            member.barrier()?; // and is awake here
            let start = Instant::now();
            data = member.all_reduce(data)?;
            let ms = start.elapsed().as_secs_f64() * 1e3;
            let slowest = member.all_gather(ms)?.into_iter().fold(0.0, f64::max);
            let expected = (0..k).map(|rank| (1 + rank + turn) as f32).sum::<f32>();
            let wrong = data.iter().find(|x| **x != expected);
            ensure!(wrong.is_none(), "a sum is {wrong:?}, not {expected}");
            if turn > 0 {
                times.push(slowest);
            }
        }
    }
    Ok(times)
}
