//! Wrong options, lost tables, copied checkpoints, moved folders and odd files cost no run: neither the one that goes
//! on nor an earlier one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::kit::{
    command, ended, has, older_checkpoint, refuses, start, succeeds, times, until_two_checkpoints,
    write_idx,
};
use crate::runs_are_taken_up::{NEWEST, RUN, Runs};

trials![
    an_option_that_is_refused_leaves_the_earlier_run,
    one_run_or_the_other_is_there,
    a_trace_is_no_file_of_the_run,
    a_table_that_contradicts_the_checkpoint_is_refused,
    a_checkpoint_of_another_run_is_refused,
    a_table_that_is_no_file_is_named,
    a_moved_folder_ends_its_run,
    #[cfg(target_os = "linux")]
    a_folder_that_cannot_be_written_is_named_with_a_way_out,
    files_of_impossible_length_cost_nothing,
    images_of_impossible_length_cost_nothing,
    #[cfg(feature = "hub")]
    ctrl_c_ends_a_download,
    a_message_is_one_line,
];

const SMALL: &str =
    "--device cpu --data synthetic --limit-train 12 --limit-test 8 --epochs 1 --batch-size 4";

/// All files of a folder.
fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let files = fs::read_dir(folder)?.map(|file| {
        let path = file?.path();
        Ok((path.display().to_string(), fs::read(&path)?))
    });
    files.collect()
}

fn fifo(path: &Path) -> Result<()> {
    ensure!(Command::new("mkfifo").arg(path).status()?.success());
    Ok(())
}

fn an_option_that_is_refused_leaves_the_earlier_run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (old, pipe) = (folder.path().join("old"), folder.path().join("pipe.json"));
    let out = format!("{SMALL} --overwrite --out {}", old.display());
    succeeds("concise", &out)?;
    fifo(&pipe)?;
    let before = files(&old)?;
    let (pipe, here) = (pipe.display(), folder.path().display());
    for (more, words) in [
        (
            "--trace /proc/x/t.json".into(),
            "t.json: cannot make its folder",
        ),
        (format!("--trace {pipe}"), "it is a FIFO, not a file"),
        (format!("--trace {here}"), "it is a folder, not a file"),
        (format!("--init {pipe}"), "it is a FIFO, not a file"),
    ] {
        refuses("concise", &format!("{out} {more}"), &[words])?;
        ensure!(files(&old)? == before, "{more}: another folder");
    }
    let odd = folder.path().join("odd");
    fs::create_dir_all(odd.join(NEWEST))?;
    for (to, words) in [
        (
            "--overwrite --out",
            "safetensors is a folder, not a file of a run",
        ),
        ("--resume", "odd/checkpoint.safetensors: it is a folder"),
    ] {
        let args = format!("{SMALL} {to} {}", odd.display());
        refuses("concise", &args, &[words])?;
    }
    for (more, words) in [("--split 1,x", "--split"), ("--timeout 0", "--timeout")] {
        refuses("concise", &format!("{out} {more}"), &[words])?;
        ensure!(files(&old)? == before, "{more}: another folder");
    }
    Ok(())
}

/// A run that replaces another one is killed at its beginning.
fn one_run_or_the_other_is_there() -> Result<()> {
    let runs = Runs::new()?;
    let old = runs.path("old");
    for i in 0..times(2) as u64 {
        let _ = fs::remove_dir_all(&old);
        succeeds("concise", &format!("{SMALL} --out {}", old.display()))?;
        let model = fs::read(old.join("model.safetensors"))?;
        let over = format!("{RUN} --overwrite --out {}", old.display());
        let mut new = start("concise", &over)?;
        if i % 2 == 0 {
            std::thread::sleep(Duration::from_millis(10 * (i % 20)));
        } else {
            let len = || fs::metadata(old.join("steps.csv")).map_or(0, |file| file.len());
            let before = len();
            while len() == before && new.try_wait()?.is_none() {}
        }
        new.kill()?;
        new.wait()?;
        let checkpoint = fs::read(old.join(NEWEST))?;
        let is_new = String::from_utf8_lossy(&checkpoint).contains("lr 0.02");
        if is_new {
            runs.ends_alike("old")?;
        } else {
            succeeds("concise", &format!("--resume {}", old.display()))?;
            let now = fs::read(old.join("model.safetensors"))?;
            ensure!(now == model, "another model");
        }
    }
    Ok(())
}

fn a_trace_is_no_file_of_the_run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (out, link) = (folder.path().join("run"), folder.path().join("link.json"));
    symlink(out.join("steps.csv"), &link)?;
    let names = ["loss.json", "steps.csv", ".steps.csv.7-0.partial"];
    let mut traces = names.map(|name| out.join(".").join(name)).to_vec();
    traces.push(link);
    let run = format!("{SMALL} --overwrite --out {}", out.display());
    let refused = |trace: &PathBuf| {
        let args = format!("{run} --trace {}", trace.display());
        refuses("concise", &args, &["is a file of the run itself"])
    };
    traces.iter().try_for_each(refused)?;
    succeeds("concise", &run)?;
    let before = files(&out)?;
    traces.iter().try_for_each(refused)?;
    // a run without a folder, or with another one, may not replace it either
    let args = format!(
        "{SMALL} --overwrite --trace {}",
        out.join("steps.csv").display()
    );
    refuses("concise", &args, &["is a file of the run in its folder"])?;
    ensure!(files(&out)? == before, "another folder");
    Ok(())
}

fn a_table_that_contradicts_the_checkpoint_is_refused() -> Result<()> {
    let runs = Runs::new()?;
    let out = runs.copied("run")?;
    for (table, from, to, words) in [
        ("steps.csv", "\n1,2,4,", "\n1,2,5,", "line 3 of "),
        ("steps.csv", "step", "steps", "line 1 of "),
        ("epochs.csv", "\n2,", "\n3,", "line 3 of "),
    ] {
        let path = out.join(table);
        let whole = fs::read_to_string(&path)?;
        fs::write(&path, whole.replacen(from, to, 1))?;
        let before = files(&out)?;
        let named = format!("{words}{}", path.display());
        let resume = format!("--resume {}", out.display());
        let todo = "put the right checkpoint back, or remove the table";
        let words = [&named, ", and the checkpoint has ", todo];
        refuses("concise", &resume, &words)?;
        ensure!(files(&out)? == before, "{table}: another folder");
        fs::write(&path, whole)?;
    }
    runs.ends_alike("run").map(|_| ())
}

/// Whatever its options are: the newest one, or the one before it if the newest is damaged.
fn a_checkpoint_of_another_run_is_refused() -> Result<()> {
    let runs = Runs::new()?;
    let out = runs.copied("run")?;
    let other = runs.path("other");
    let args = format!("{RUN} --seed 1 --out {}", other.display());
    succeeds("concise", &args)?;
    let previous = |out: &Path| older_checkpoint(out).context("one checkpoint alone");
    let (newest, older) = (out.join(NEWEST), previous(&out)?);
    let own = [fs::read(&newest)?, fs::read(&older)?];
    for newest_is_damaged in [false, true] {
        if newest_is_damaged {
            fs::write(&newest, "damaged")?;
            fs::copy(previous(&other)?, &older)?;
        } else {
            fs::copy(other.join(NEWEST), &newest)?;
        }
        let before = files(&out)?;
        let resume = format!("--resume {}", out.display());
        let words = ["steps.csv", "they are not of the same run"];
        refuses("concise", &resume, &words)?;
        ensure!(files(&out)? == before, "another folder");
    }
    fs::write(newest, &own[0])?;
    fs::write(older, &own[1])?;
    runs.ends_alike("run").map(|_| ())
}

fn a_table_that_is_no_file_is_named() -> Result<()> {
    let runs = Runs::new()?;
    let folder = runs.begun("run")?;
    let steps = folder.join("steps.csv");
    let resume = format!("--resume {}", folder.display());
    fs::remove_file(&steps)?;
    fifo(&steps)?;
    refuses("concise", &resume, &["steps.csv: it is a FIFO, not a file"])?;
    fs::remove_file(&steps)?;
    symlink("/dev/zero", &steps)?;
    let link = "steps.csv: it is a symbolic link, not a file";
    refuses("concise", &resume, &[link])?;
    fs::remove_file(&steps)?;
    runs.ends_alike("run")?;
    Ok(())
}

/// It writes nothing into the folder that gets its name, and goes on where its own is now.
fn a_moved_folder_ends_its_run() -> Result<()> {
    let runs = Runs::new()?;
    let (here, there) = (runs.path("here"), runs.path("there"));
    let args = format!("{RUN} --checkpoint-every 2 --out {}", here.display());
    let mut run = command("concise", &args)?;
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    until_two_checkpoints(&here, &mut run)?;
    fs::rename(&here, &there)?;
    fs::create_dir(&here)?;
    let (status, _, said) = ended(run.wait_with_output()?)?;
    ensure!(status == 1, "{status}: {said}");
    has(&said, &format!("the folder {} was moved", here.display()))?;
    has(&said, ", removed or replaced")?;
    ensure!(files(&here)?.is_empty(), "it wrote into the new folder");
    runs.ends_alike("there").map(|_| ())
}

/// A complete run there stays so; a longer one goes on in a copy.
#[cfg(target_os = "linux")]
fn a_folder_that_cannot_be_written_is_named_with_a_way_out() -> Result<()> {
    let folder = tempfile::tempdir()?;
    succeeds(
        "concise",
        &format!("{SMALL} --out {}", folder.path().display()),
    )?;
    let script = "mount --bind . . && mount -o remount,bind,ro . || exit 99\n\
                  $PROGRAM --resume $PWD || exit 98\n\
                  $PROGRAM --resume $PWD --epochs 2";
    let mut script = crate::kit::in_a_namespace("concise", script)?;
    let (status, _, said) = ended(script.current_dir(folder.path()).output()?)?;
    ensure!(status == 2, "{status}: {said}");
    has(
        &said,
        "; copy the folder to a place that can be written, and name the copy",
    )
}

/// 6 GiB of zeros, or behind what is there.
fn lengthen(path: &Path) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    let file = options.append(true).create(true).open(path)?;
    Ok(file.set_len(6 << 30)?)
}

fn refuses_at_once(args: &str, words: &[&str]) -> Result<()> {
    let start = Instant::now();
    refuses("concise", args, words)?;
    let took = start.elapsed();
    ensure!(took < Duration::from_secs(5), "{args}: {took:?}");
    Ok(())
}

fn files_of_impossible_length_cost_nothing() -> Result<()> {
    let runs = Runs::new()?;
    let newest = runs.copied("run")?.join(NEWEST);
    let (init, zeros) = (runs.path("init"), runs.path("zeros"));
    fs::copy(runs.whole().join("model.safetensors"), &init)?;
    lengthen(&init)?;
    lengthen(&zeros)?;
    lengthen(&newest)?;
    let too_long = "6442450944 bytes, its header declares";
    refuses_at_once(&format!("{SMALL} --init {}", init.display()), &[too_long])?;
    let damaged = "no safetensors file, or it is damaged";
    refuses_at_once(&format!("{SMALL} --init {}", zeros.display()), &[damaged])?;
    let said = runs.ends_alike("run")?; // from the previous checkpoint
    has(&said, too_long)
}

fn images_of_impossible_length_cost_nothing() -> Result<()> {
    for ending in ["", ".gz"] {
        let folder = tempfile::tempdir()?;
        write_idx(folder.path(), 12, 3, ending)?;
        let data = format!("--device cpu --data {}", folder.path().display());
        let name = format!("train-images-idx3-ubyte{ending}");
        let images = folder.path().join(&name);
        let whole = fs::read(&images)?;
        lengthen(&images)?;
        let words = "more than 9408 bytes of data; the header declares 12 images";
        refuses_at_once(&data, &[words, &name])?;
        fs::remove_file(&images)?;
        fifo(&images)?;
        refuses("concise", &data, &[&name, "is not a file"])?;
        fs::remove_file(&images)?;
        symlink(&images, &images)?;
        refuses("concise", &data, &[&name, "symbolic links"])?;
        fs::remove_file(&images)?;
        fs::write(&images, whole)?;
        succeeds("concise", &format!("{data} --batch-size 4 --epochs 1"))?;
    }
    Ok(())
}

/// A Hub that does not answer; the tests of `dataset` have one that stops in the middle of a file.
#[cfg(feature = "hub")]
fn ctrl_c_ends_a_download() -> Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let home = tempfile::tempdir()?;
    let mut run = command("concise", "--device cpu")?
        .env("HF_ENDPOINT", format!("http://{}", listener.local_addr()?))
        .env("HF_HOME", home.path())
        .env("NO_PROXY", "*")
        .env("XDG_DATA_DIRS", "/no/such/folder")
        .env_remove("FASHION_MNIST_DIR")
        .stderr(Stdio::piped())
        .spawn()?;
    let mut asked = None;
    let is_asked = || {
        asked = listener.accept().ok();
        asked.is_some()
    };
    crate::kit::until(is_asked, "a request", &mut run)?;
    crate::kit::signal("-INT", run.id())?;
    let (status, _, said) = ended(run.wait_with_output()?)?;
    ensure!(status == 130, "{status}: {said}");
    has(&said, "stopping")
}

fn a_message_is_one_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("a\nb");
    for more in ["--init", "--data", "--resume"] {
        let (status, _, said) = ended(command("concise", "")?.arg(more).arg(&out).output()?)?;
        ensure!(status == 2 && said.lines().count() == 1, "{said}");
        has(&said, r"a\nb")?;
    }
    Ok(())
}
