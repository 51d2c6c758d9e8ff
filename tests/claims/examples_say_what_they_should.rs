//! Each example runs by itself, offline, on a small set, and says what its page is about.
//!
//! `cargo test` builds the examples; where only this binary was built, a test says what builds them.

use std::env::consts::EXE_SUFFIX;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;

use crate::kit::{has, root, trial};

/// Looks at what an example printed.
type Check = fn(&str) -> Result<()>;

/// Every example, and what has to be true of what it prints.
const EXAMPLES: [(&str, Check); 20] = [
    ("01_get_params", |said| {
        has(said, "b1 weight: [0., 0.")?;
        has(said, "b1 grad: [0., 0.")
    }),
    ("02_allreduce", |said| {
        let after = said.split("after allreduce:").nth(1).unwrap_or("");
        ensure!(after.matches("[[3., 3.]]").count() == 2, "{said}");
        has(said, "[[1., 1.]]")
    }),
    ("03_split_batch", |said| {
        has(said, "five examples: [[0, 1, 2], [3, 4]]")
    }),
    ("04_parity", |said| {
        let differ = said.matches("the updates differ by at most");
        ensure!(differ.count() == 8, "{said}");
        Ok(())
    }),
    ("05_larger_minibatch", |said| {
        let rows = rows(said, 9)?;
        let settings: Vec<_> = rows.iter().map(|row| [row[0], row[2], row[3]]).collect();
        let expected = [
            [1.0, 0.025, 0.0],
            [2.0, 0.025, 0.0],
            [2.0, 0.05, 0.0],
            [2.0, 0.05, 8.0],
        ];
        ensure!(settings == expected, "{said}");
        let steps: Vec<f64> = rows.iter().map(|row| row[4]).collect();
        ensure!(steps == [128.0, 64.0, 64.0, 64.0], "{said}");
        let in_order = |row: &Vec<f64>| row[6] <= row[7] && row[7] <= row[8];
        ensure!(rows.iter().all(in_order), "{said}");
        let [one, same_rate, twice_the_rate] = [0, 1, 2].map(|i| rows[i][7]);
        ensure!(
            one > 0.6 && same_rate < one && same_rate < twice_the_rate,
            "{said}"
        );
        let [without, with] = [&rows[2][6..], &rows[3][6..]];
        ensure!(without != with, "the warm-up changes nothing: {said}");
        Ok(())
    }),
    ("06_learning_rates", |said| {
        let rows = rows(said, 4)?;
        ensure!(rows.len() == 5, "{said}");
        for row in &rows[..3] {
            close(row[1], row[2], 0.08, said)?; // the same minibatches
        }
        ensure!(rows[1][1] > 0.6 && rows[4][1] < 0.3, "{said}");
        Ok(())
    }),
    ("07_efficient_allreduce", |said| {
        has(said, "the same bits: true")?;
        has(said, "through the busiest link: 268 MB, in parts 67 MB")
    }),
    ("08_accuracy_on_all_devices", |said| {
        let accuracy = |line: &str| line.split(": ").nth(1).map(str::parse::<f64>);
        let all = said.lines().filter_map(accuracy);
        let all: Vec<f64> = all.collect::<Result<_, _>>()?;
        ensure!(all.len() == 2 && all[0] == all[1] && all[0] > 0.4, "{said}");
        Ok(())
    }),
    ("09_resnet18_on_two_devices", |said| {
        has(said, "11175818 parameters")?;
        has(said, "device 1 computed [2, 10]")?;
        has(said, "device 2: 0.weight was not initialized on replica 2")
    }),
    ("10_sixteen_devices", |said| {
        let rows = rows(said, 6)?;
        let devices: Vec<f64> = rows.iter().map(|row| row[0]).collect();
        ensure!(devices == [1.0, 2.0, 4.0, 16.0, 16.0, 16.0], "{said}");
        for row in &rows[1..4] {
            close(row[5], rows[0][5], 0.08, said)?; // the same minibatches
        }
        ensure!(rows[0][5] > 0.25 && rows[5][5] > 0.5, "{said}");
        has(said, "16    40 %  91 %   71 %")
    }),
    ("11_devices_of_different_speed", |said| {
        let after = |line: &str| line.split("loss ").nth(1).map(str::parse::<f64>);
        let losses: Vec<f64> = said.lines().filter_map(after).collect::<Result<_, _>>()?;
        ensure!(losses.len() == 4, "{said}");
        for loss in &losses {
            close(*loss, losses[0], 0.002, said)?; // however it is split
        }
        has(said, "4,1: 0.20 for the slow one")?;
        let measured = said.split("measured: ").nth(1).context("no split")?;
        let slow: f64 = measured.split(' ').next().unwrap_or("").parse()?;
        // 0.2 to 0.35; with other work on the fast one's core it can be more than a half
        ensure!(
            slow > 0.0 && slow < 0.65,
            "the share of the slow one: {said}"
        );
        Ok(())
    }),
    ("12_without_waiting", |said| {
        let after = |line: &str, words| -> Option<f64> {
            let number = line.split(words).nth(1)?.split_whitespace().next()?;
            number.parse().ok()
        };
        let numbers = |words| said.lines().filter_map(move |line| after(line, words));
        let ms: Vec<f64> = numbers("overlap false: ").collect();
        let accuracy: Vec<f64> = numbers("test accuracy ").collect();
        ensure!(ms.len() == 2 && accuracy.len() == 4, "{said}");
        ensure!(ms.iter().all(|ms| *ms >= 10.0), "{said}"); // the pause of the slow links
        close(accuracy[0], accuracy[1], 0.15, said)?; // at the smaller rate
        ensure!(accuracy[2] > accuracy[3] + 0.15, "{said}"); // stale gradients at the larger one
        Ok(())
    }),
    ("13_gluon_tutorial", |said| {
        has(said, "synthetic images in place of mnist")?;
        let accuracy = said.split("test accuracy = ").nth(1).context("none")?;
        ensure!(accuracy.trim().parse::<f64>()? > 0.4, "{said}");
        Ok(())
    }),
    ("14_your_own_network", |said| {
        let accuracy = said.trim().strip_prefix("test acc: ").context("none")?;
        ensure!(accuracy.parse::<f64>()? > 0.6, "{said}");
        Ok(())
    }),
    ("15_seeds", |said| {
        ensure!(said.matches("\nseed ").count() == 2, "{said}");
        has(said, "last epoch: ")?;
        has(said, "best epoch: ")
    }),
    ("16_time_to_accuracy", |said| {
        let accuracy = said.strip_prefix("test acc: ").context("none")?;
        let accuracy = accuracy.split(" after ").next().context("none")?;
        ensure!(accuracy.parse::<f64>()? > 0.7, "{said}");
        Ok(())
    }),
    ("17_transformer", |said| {
        let after = said.split("loss ").skip(1);
        let losses = after.filter_map(|after| after.split(',').next());
        let losses: Vec<f64> = losses.map(str::parse).collect::<Result<_, _>>()?;
        ensure!(losses.len() == 6 && losses[5] < losses[0], "{said}");
        ensure!(losses[5] < 1.8, "{said}");
        let written = said.lines().nth(6).context("it writes nothing")?;
        ensure!(written.starts_with("You may "), "{said}");
        Ok(())
    }),
    ("18_a_network_in_candle", |said| {
        let wrong = "the gradient of input 0 of shape [32, 1, 28, 28] is wrong:\n";
        has(said, wrong)?;
        has(said, "(0.06 times)")?;
        let row = |name| said.lines().find_map(|line: &str| line.strip_prefix(name));
        let one_device = |name| row(name)?.split_whitespace().next()?.parse().ok();
        let ms: [Option<f64>; 2] = ["in candle", "ours"].map(one_device);
        let [candles, ours] = [ms[0].context("no row")?, ms[1].context("no row")?];
        ensure!(ours < candles, "{said}");
        let apart = said.split("at most ").nth(1).context("no outputs")?;
        let apart: f64 = apart.split(' ').next().unwrap_or("").parse()?;
        ensure!(apart < 1e-5, "{said}");
        Ok(())
    }),
    ("19_on_one_device", |said| {
        let accuracy = said.trim().strip_prefix("test acc: ").context("none")?;
        ensure!(accuracy.parse::<f64>()? > 0.6, "{said}");
        Ok(())
    }),
    ("ddp_in_one_file", |said| {
        let rows = rows(said, 4)?; // a step, and its losses on 1, 2 and 3 devices
        ensure!(rows.len() == 20 && rows[19][1] < rows[0][1] / 2.0, "{said}");
        for row in &rows {
            close(row[1], row[2], 1e-5, said)?;
            close(row[1], row[3], 1e-5, said)?;
        }
        has(said, "largest difference: ")
    }),
];

pub fn trials() -> Vec<Trial> {
    let run = |(name, check): (&'static str, Check)| {
        let test = move || said_by(name).and_then(|said| check(&said));
        trial(module_path!(), name, test)
    };
    let mut trials = listed!(true, "", every_example_is_here_and_short);
    trials.extend(EXAMPLES.map(run));
    trials
}

/// At most sixty lines of code, without comments and empty lines; five by name are longer.
fn every_example_is_here_and_short() -> Result<()> {
    let files = fs::read_dir(root().join("examples"))?;
    let names = files.map(|file| Ok(file?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.sort();
    // a package, what `public_networks_train` trains, and what `scripts_go_on` runs
    let is_elsewhere =
        |name: &str| ["seven-diffs", "networks"].contains(&name) || name.ends_with(".sh");
    names.retain(|name| !is_elsewhere(name));
    let listed = EXAMPLES.map(|(name, _)| format!("{name}.rs"));
    ensure!(names == listed, "examples/ has {names:?}, not {listed:?}");
    let steps = seven_diffs::program::STEPS.map(|step| format!("seven-diffs/src/{step}.rs"));
    names.extend(steps);
    for name in names {
        let text = fs::read_to_string(root().join("examples").join(&name))?;
        let code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
        let lines = text.lines().filter(code).count();
        let most = match &name[..3] {
            "11_" | "16_" => 80,
            "17_" | "18_" | "ddp" | "sev" => 130,
            _ => 62,
        };
        ensure!(lines <= most, "examples/{name} has {lines} lines");
    }
    Ok(())
}

/// What an example prints, without options.
fn said_by(name: &str) -> Result<String> {
    let output = Command::new(built(name)?).output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// The program of an example, which lies beside this one and is not older than its source.
fn built(name: &str) -> Result<PathBuf> {
    let tests = std::env::current_exe()?;
    let target = tests.ancestors().nth(2).context("no target folder")?;
    let program = target.join("examples").join(format!("{name}{EXE_SUFFIX}"));
    let source = root().join("examples").join(format!("{name}.rs"));
    let time = |file: &PathBuf| fs::metadata(file).and_then(|file| file.modified());
    let is_new = time(&program).is_ok_and(|built| time(&source).is_ok_and(|s| built >= s));
    let builds = "is missing or older than its source: `cargo build --examples` makes it";
    ensure!(is_new, "{} {builds}", program.display());
    Ok(program)
}

fn close(a: f64, b: f64, limit: f64, said: &str) -> Result<()> {
    ensure!((a - b).abs() <= limit, "{a} and {b} in\n{said}");
    Ok(())
}

/// The lines that are a table of so many columns of numbers.
fn rows(said: &str, columns: usize) -> Result<Vec<Vec<f64>>> {
    let row = |line: &str| -> Option<Vec<f64>> {
        let numbers = line.split_whitespace().map(|word| word.parse().ok());
        let row: Vec<f64> = numbers.collect::<Option<_>>()?;
        (row.len() == columns).then_some(row)
    };
    let rows: Vec<_> = said.lines().filter_map(row).collect();
    ensure!(!rows.is_empty(), "no table in\n{said}");
    Ok(rows)
}
