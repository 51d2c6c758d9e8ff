//! The program `circle` is killed and started again, and ends as if it had not been.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn circle(place: &Path) -> Command {
    let mut circle = Command::new(env!("CARGO_BIN_EXE_circle"));
    circle.current_dir(place).stderr(Stdio::inherit());
    circle
}

/// A new folder.
fn place(name: &str) -> PathBuf {
    let place = std::env::temp_dir().join(format!("circle-{name}-{}", std::process::id()));
    fs::create_dir(&place).unwrap();
    place
}

/// Its lines without the seconds, which differ.
fn lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let without = |line: &str| line.rsplit_once(", ").unwrap().0.to_owned();
    text.lines().map(without).collect()
}

#[test]
fn a_run_that_is_killed_ends_with_the_same_bits() {
    let whole = place("whole");
    let since = Instant::now();
    let expected = lines(&circle(&whole).output().unwrap());
    let takes = since.elapsed();
    let killed = place("killed");
    for part in [0.3, 0.4, 0.2] {
        let mut run = circle(&killed).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(takes.mul_f64(part).max(Duration::from_millis(1)));
        run.kill().unwrap(); // SIGKILL
        run.wait().unwrap();
    }
    let rest = lines(&circle(&killed).output().unwrap());
    assert!(expected.ends_with(&rest), "{rest:?}\n{expected:?}");
    let best = |place: &Path| fs::read(place.join("runs/circle/best.safetensors")).unwrap();
    assert!(best(&whole) == best(&killed), "other parameters");
    // started once more it trains nothing
    assert!(lines(&circle(&killed).output().unwrap()).is_empty());
    for place in [whole, killed] {
        fs::remove_dir_all(place).unwrap();
    }
}
