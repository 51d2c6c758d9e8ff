//! Wrong options, lost tables, copied checkpoints, moved folders and odd files cost no run: neither the one that goes
//! on nor an earlier one.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use flate2::{Compression, write::GzEncoder};

use crate::kit::{command, has, idx_files, refuses, start, succeeds, times, until_there};
use crate::runs_are_taken_up::{LENET, NEWEST, Runs};

trials![
    an_option_that_is_refused_leaves_the_earlier_run,
    one_run_or_the_other_is_there,
    a_trace_is_no_file_of_the_run,
    tables_are_written_anew,
    a_table_that_contradicts_the_checkpoint_is_refused,
    a_checkpoint_of_another_run_is_refused,
    a_table_that_is_no_file_is_named,
    a_folder_in_the_place_of_a_checkpoint_is_replaced,
    a_moved_folder_ends_its_run,
    files_of_impossible_length_cost_nothing,
    images_of_impossible_length_cost_nothing,
    #[cfg(feature = "hub")]
    ctrl_c_ends_a_download,
    a_message_is_one_line,
];

const SMALL: &str =
    "--device cpu --data synthetic --limit-train 50 --limit-test 20 --epochs 1 --batch-size 16";

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
    succeeds("scratch", &out)?;
    fifo(&pipe)?;
    let before = files(&old)?;
    let with = |more: &str, words: &str| -> Result<()> {
        refuses("scratch", &format!("{out} {more}"), &[words])?;
        ensure!(files(&old)? == before, "{more}: another folder");
        Ok(())
    };
    with(
        "--trace /proc/x/t.json",
        "--trace /proc/x/t.json: cannot make its folder",
    )?;
    with(
        &format!("--trace {}", pipe.display()),
        "it is a FIFO, not a file",
    )?;
    with(
        &format!("--trace {}", folder.path().display()),
        "it is a folder, not a file",
    )?;
    with(
        &format!("--init {}", pipe.display()),
        "it is a FIFO, not a file",
    )?;
    let odd = folder.path().join("odd");
    fs::create_dir_all(odd.join(NEWEST))?;
    let out = format!("{SMALL} --overwrite --out {}", odd.display());
    refuses(
        "scratch",
        &out,
        &["safetensors is a folder, not a file of a run"],
    )?;
    let resume = format!("--resume {}", odd.display());
    refuses(
        "scratch",
        &resume,
        &["odd/checkpoint.safetensors: it is a folder"],
    )?;
    let out = format!("{SMALL} --overwrite --out {}", old.display());
    for (more, words) in [("--split 1,x", "--split"), ("--timeout 0", "--timeout")] {
        refuses("concise", &format!("{out} {more}"), &[words])?;
        ensure!(files(&old)? == before, "{more}: another folder");
    }
    Ok(())
}

/// A run that replaces another one is killed at its beginning.
fn one_run_or_the_other_is_there() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    let old = runs.path("old");
    for i in 0..times(8) as u64 {
        let _ = fs::remove_dir_all(&old);
        succeeds("scratch", &format!("{SMALL} --out {}", old.display()))?;
        let model = fs::read(old.join("model.safetensors"))?;
        let mut new = start(
            "scratch",
            &format!("{LENET} --overwrite --out {}", old.display()),
        )?;
        if i % 2 == 0 {
            std::thread::sleep(Duration::from_millis(10 * (i % 20)));
        } else {
            let steps = fs::metadata(old.join("steps.csv"))?.len();
            let is_old =
                || fs::metadata(old.join("steps.csv")).is_ok_and(|file| file.len() == steps);
            while is_old() && new.try_wait()?.is_none() {}
        }
        new.kill()?;
        new.wait()?;
        let checkpoint = fs::read(old.join(NEWEST))?;
        let is_new = String::from_utf8_lossy(&checkpoint).contains("lr 0.5");
        if is_new {
            runs.ends_alike("old")?;
        } else {
            succeeds("scratch", &format!("--resume {}", old.display()))?;
            ensure!(
                fs::read(old.join("model.safetensors"))? == model,
                "another model"
            );
        }
    }
    Ok(())
}

fn a_trace_is_no_file_of_the_run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (out, link) = (folder.path().join("run"), folder.path().join("link.json"));
    symlink(out.join("steps.csv"), &link)?;
    let names = ["loss.json", "steps.csv", ".checkpoint.safetensors.partial"];
    let mut traces = names.map(|name| out.join(".").join(name)).to_vec();
    let run = format!("{SMALL} --overwrite --out {}", out.display());
    let refused = |trace: &PathBuf| {
        let args = format!("{run} --trace {}", trace.display());
        refuses("scratch", &args, &["is a file of the run itself"])
    };
    traces.iter().try_for_each(refused)?;
    succeeds("scratch", &run)?;
    traces.push(link);
    let before = files(&out)?;
    traces.iter().try_for_each(refused)?;
    ensure!(files(&out)? == before, "another folder");
    Ok(())
}

/// Tables that are lost or too short, the run goes on from its newest checkpoint, and ends with the same tables.
fn tables_are_written_anew() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    type Change = fn(&Path) -> std::io::Result<()>;
    let changes: [Change; 4] = [
        |table| fs::remove_file(table),
        |table| fs::write(table, ""),
        |table| fs::OpenOptions::new().write(true).open(table)?.set_len(20),
        |table| fs::rename(table, table.with_extension("old")),
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let name = format!("lost-{i}");
        runs.interrupted(&name)?;
        for table in ["steps.csv", "epochs.csv"] {
            change(&runs.path(&name).join(table))?;
        }
        runs.ends_alike(&name)?;
    }
    Ok(())
}

/// A run that ended in order: its tables have all rows of its newest checkpoint.
fn ended(runs: &Runs, name: &str, args: &str) -> Result<PathBuf> {
    let out = runs.path(name);
    succeeds("scratch", &format!("{args} --out {}", out.display()))?;
    fs::remove_file(out.join("model.safetensors"))?; // as if the end was not reached
    Ok(out)
}

fn a_table_that_contradicts_the_checkpoint_is_refused() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    let out = ended(&runs, "run", LENET)?;
    for (table, from, to, words) in [
        ("steps.csv", "\n1,2,16,", "\n1,2,17,", "line 3 of "),
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
        refuses(
            "scratch",
            &resume,
            &[&named, ", and the checkpoint has ", todo],
        )?;
        ensure!(files(&out)? == before, "{table}: another folder");
        fs::write(&path, whole)?;
    }
    runs.ends_alike("run").map(|_| ())
}

/// Whatever its options are: the newest one, or the one before it if the newest is damaged.
fn a_checkpoint_of_another_run_is_refused() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    let out = ended(&runs, "run", LENET)?;
    let (newest, previous) = (
        out.join(NEWEST),
        out.join("checkpoint.previous.safetensors"),
    );
    let own = [&newest, &previous].map(fs::read);
    let others = [
        format!("{LENET} --seed 1"),
        LENET.replace("--lr 0.5", "--lr 0.25"),
        LENET.replace("--batch-size 16", "--batch-size 20"),
        LENET.replace("--limit-train 400", "--limit-train 300"),
    ];
    for (i, args) in others.iter().enumerate() {
        let other = ended(&runs, &format!("other-{i}"), args)?;
        match i % 2 {
            0 => fs::copy(other.join(NEWEST), &newest).map(|_| ())?,
            _ => {
                fs::write(&newest, "damaged")?;
                fs::copy(other.join("checkpoint.previous.safetensors"), &previous)?;
            }
        }
        let before = files(&out)?;
        let resume = format!("--resume {}", out.display());
        refuses(
            "scratch",
            &resume,
            &["steps.csv", "they are not of the same run"],
        )?;
        ensure!(files(&out)? == before, "{args}: another folder");
    }
    let [newest_was, previous_was] = own;
    fs::write(newest, newest_was?)?;
    fs::write(previous, previous_was?)?;
    runs.ends_alike("run").map(|_| ())
}

fn a_table_that_is_no_file_is_named() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    runs.interrupted("run")?;
    let steps = runs.path("run").join("steps.csv");
    let resume = format!("--resume {}", runs.path("run").display());
    fs::remove_file(&steps)?;
    fifo(&steps)?;
    refuses("scratch", &resume, &["steps.csv: it is a FIFO, not a file"])?;
    fs::remove_file(&steps)?;
    symlink("/dev/zero", &steps)?;
    refuses(
        "scratch",
        &resume,
        &["steps.csv: it is a symbolic link, not a file"],
    )?;
    fs::remove_file(&steps)?;
    runs.ends_alike("run")?;
    Ok(())
}

fn a_folder_in_the_place_of_a_checkpoint_is_replaced() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    runs.interrupted("run")?;
    let newest = runs.path("run").join(NEWEST);
    fs::remove_file(&newest)?;
    fs::create_dir(&newest)?;
    let said = runs.ends_alike("run")?;
    let words = "checkpoint.safetensors: it is a folder, not a file; resuming from the previous";
    has(&said, words)
}

/// It writes nothing into the folder that gets its name, and goes on where its own is now.
fn a_moved_folder_ends_its_run() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    let (here, there) = (runs.path("here"), runs.path("there"));
    let args = format!("{LENET} --checkpoint-every 2 --out {}", here.display());
    let mut first = command("scratch", &args)?;
    let mut first = first.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    until_there(&here.join("checkpoint.previous.safetensors"), &mut first)?;
    fs::rename(&here, &there)?;
    succeeds("scratch", &format!("{LENET} --out {}", here.display()))?;
    let output = first.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{}: {said}", output.status);
    let words = format!(
        "the folder {} was moved, removed or replaced",
        here.display()
    );
    has(&said, &words)?;
    runs.are_alike("here")?;
    runs.ends_alike("there").map(|_| ())
}

fn files_of_impossible_length_cost_nothing() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    runs.interrupted("run")?;
    let (out, model) = (
        runs.path("run"),
        runs.path("whole").join("model.safetensors"),
    );
    let (init, zeros) = (
        runs.path("init.safetensors"),
        runs.path("zeros.safetensors"),
    );
    fs::copy(model, &init)?;
    for path in [&init, &zeros, &out.join(NEWEST)] {
        let file = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)?;
        file.set_len(6 << 30)?;
    }
    for (args, words) in [
        (
            format!("{SMALL} --init {}", init.display()),
            "6442450944 bytes, its header declares",
        ),
        (
            format!("{SMALL} --init {}", zeros.display()),
            "its header is damaged",
        ),
    ] {
        let start = Instant::now();
        refuses("scratch", &args, &[words])?;
        ensure!(
            start.elapsed() < Duration::from_secs(5),
            "{args}: {:?}",
            start.elapsed()
        );
    }
    let said = runs.ends_alike("run")?; // from the previous checkpoint
    has(&said, "6442450944 bytes, its header declares")
}

fn images_of_impossible_length_cost_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = format!("--device cpu --data {}", folder.path().display());
    for ending in ["", ".gz"] {
        let mut images = None;
        for (name, raw) in idx_files(12, 3) {
            let path = folder.path().join(name + ending);
            match ending {
                "" => fs::write(&path, raw)?,
                _ => {
                    let mut packed = GzEncoder::new(fs::File::create(&path)?, Compression::fast());
                    packed.write_all(&raw)?;
                    packed.finish()?;
                }
            }
            images.get_or_insert(path);
        }
        let images = images.context("no file")?;
        let whole = fs::read(&images)?;
        let words = "more than 9408 bytes of data; the header declares 12 images";
        fs::OpenOptions::new()
            .append(true)
            .open(&images)?
            .set_len(6 << 30)?;
        let start = Instant::now();
        refuses("scratch", &data, &[words, "train-images-idx3"])?;
        ensure!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
        fs::remove_file(&images)?;
        fifo(&images)?;
        refuses("scratch", &data, &["train-images-idx3", "is not a file"])?;
        fs::remove_file(&images)?;
        symlink(&images, &images)?;
        refuses("scratch", &data, &["train-images-idx3", "symbolic links"])?;
        fs::remove_file(&images)?;
        fs::write(&images, whole)?;
        succeeds("scratch", &format!("{data} --batch-size 4 --epochs 1"))?;
        for file in fs::read_dir(folder.path())? {
            fs::remove_file(file?.path())?;
        }
    }
    Ok(())
}

/// A Hub that announces a file and sends nothing more.
#[cfg(feature = "hub")]
fn ctrl_c_ends_a_download() -> Result<()> {
    use std::io::Read;
    let (sum, commit) = ("a".repeat(64), "b".repeat(40));
    for (bytes, status, words) in [
        (1000, 130, "stopping"),
        (i64::MAX, 1, "the Hub announces 9223372036854775807 bytes"),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let head = format!(
            "HTTP/1.1 200 OK\r\nx-repo-commit: {commit}\r\nx-linked-etag: \"{sum}\"\r\n\
             connection: close\r\nx-linked-size: {bytes}\r\ncontent-length: {bytes}\r\n\r\n"
        );
        std::thread::spawn(move || {
            let mut open = vec![];
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let mut method = [0; 4];
                let _ = stream.read_exact(&mut method);
                let _ = stream.write_all(head.as_bytes());
                if &method == b"GET " {
                    let _ = stream.write_all(b"x");
                }
                open.push(stream);
            }
        });
        let home = tempfile::tempdir()?;
        let run = command("scratch", "--device cpu")?
            .env("HF_ENDPOINT", format!("http://{address}"))
            .env("HF_HOME", home.path())
            .env("NO_PROXY", "*")
            .env("XDG_DATA_DIRS", "/no/such/folder")
            .env_remove("FASHION_MNIST_DIR")
            .stderr(Stdio::piped())
            .spawn()?;
        std::thread::sleep(Duration::from_secs(2));
        let start = Instant::now();
        if status == 130 {
            crate::kit::signal("-INT", run.id())?;
        }
        let output = run.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(status),
            "{}: {said}",
            output.status
        );
        ensure!(
            start.elapsed() < Duration::from_secs(20),
            "{:?}",
            start.elapsed()
        );
        has(&said, words)?;
    }
    Ok(())
}

fn a_message_is_one_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("a\nb");
    for more in ["--init", "--data", "--resume"] {
        let output = command("scratch", "")?.arg(more).arg(&out).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(2) && said.lines().count() == 1,
            "{said}"
        );
        has(&said, r"a\nb")?;
    }
    Ok(())
}
