// SPDX-License-Identifier: MIT OR Apache-2.0
//! The journal of threads with slices, and of CPUs with reservations, that are not their own, and
//! how to give these back.
//!
//! A custom slice stays when the program that set it dies, and a VM with short slices for ever
//! would switch several times as often. So each guard keeps a journal in `/run/reprieve`: a line
//! per thread or CPU, written *before* the kernel is told of a change. Whoever finds the journal
//! of a dead guard can undo what it did: its supervisor ([`super::supervisor`]), the next guard, or
//! `guard --restore`. Now and then the journal is written again without the threads that have
//! ended: under another name first, so that there is a whole one at any time.

use super::server::Server;
use super::slice;
use reprieve_guest::vmm::process::start_time;
use reprieve_watch::publish::make_directory;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PREFIX: &str = "slices-";

/// Locked by whoever begins a journal or looks for others.
const TURN: &str = "turn";

/// Ends the name of a journal that is going to replace another.
const NEW: &str = ".new";

/// A thread as it was before its slice was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    pub tid: u32,
    /// Tells it from a later thread with the same number.
    pub start_time: u64,
    /// `None`: it had the default.
    pub slice: Option<Duration>,
    /// The slice that guard sets. A thread that has another slice has been given it by somebody
    /// else, or is as it was before. `None`: it is not known, from an older guard's journal.
    pub short: Option<Duration>,
}

impl Before {
    /// Thread `tid` as it is; `defaults` are the slices of threads without a custom one, now and
    /// before, `short` what it is going to have.
    pub fn of(tid: u32, defaults: &[Duration], short: Duration) -> io::Result<Before> {
        let start_time = start_time(tid).ok_or(io::ErrorKind::NotFound)?;
        let slice = slice::get(tid)?;
        let slice = (!defaults.contains(&slice)).then_some(slice);
        Ok(Before { tid, start_time, slice, short: Some(short) })
    }

    /// Whether the thread has the slice that guard sets; an error as of [`slice::get`].
    pub fn is_short(&self) -> io::Result<bool> {
        let slice = slice::get(self.tid)?;
        Ok(self.short.is_none_or(|short| slice == short))
    }

    /// Whether the thread has not ended; a later one with its number is another.
    pub fn is_there(&self) -> bool {
        start_time(self.tid) == Some(self.start_time)
    }

    /// Gives the thread its slice back; returns whether it had guard's. One that is gone, or has
    /// another slice than guard's, needs nothing.
    ///
    /// # Errors
    /// [`Unsupported`](io::ErrorKind::Unsupported) while the thread has another scheduling policy.
    /// The kernel keeps the slice until the thread is an ordinary one again.
    pub fn restore(&self) -> io::Result<bool> {
        if !self.is_there() || matches!(self.is_short(), Ok(false)) {
            return Ok(false);
        }
        match slice::set(self.tid, self.slice) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// The line of a journal.
    pub fn line(&self) -> String {
        let ns = |slice: Option<Duration>| slice.map_or(0, |slice| slice.as_nanos());
        format!("{} {} {} {}\n", self.tid, self.start_time, ns(self.slice), ns(self.short))
    }

    pub fn parse(line: &str) -> Option<Before> {
        let mut numbers = line.split_ascii_whitespace();
        let tid = numbers.next()?.parse().ok()?;
        let start_time = numbers.next()?.parse().ok()?;
        let duration = |ns: u64| (ns > 0).then(|| Duration::from_nanos(ns));
        let slice = duration(numbers.next()?.parse().ok()?);
        let short = numbers.next().map_or(Ok(0), str::parse).ok().map(duration)?;
        numbers.next().is_none().then_some(Before { tid, start_time, slice, short })
    }
}

/// Held while a journal is begun, or those of dead guards are looked for: two guards that start at
/// once would each take the other's for that of a dead one, or note its slices as those of before.
/// The kernel gives it back if this process dies.
pub struct Turn {
    path: PathBuf,
    _file: File,
}

impl Turn {
    /// Waits for it.
    pub fn take(directory: &Path) -> io::Result<Turn> {
        let path = directory.join(TURN);
        loop {
            // A file that others cannot open: who may read one may lock it.
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path)?;
            // SAFETY: no memory is passed.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // Whoever had it before has removed it.
            if file.metadata()?.nlink() > 0 {
                return Ok(Turn { path, _file: file });
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A journal that is being written. It stays when this is dropped: the supervisor removes it.
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Names the processes.
    first: String,
}

impl Journal {
    /// Creates the journal of this process in `directory`.
    pub fn create(directory: &Path) -> io::Result<Journal> {
        make_directory(directory)?;
        let path = path_of(directory, std::process::id());
        // A journal of the same name is of a process that is gone, and was restored before.
        let file = File::create(&path)?;
        Ok(Journal { path, file, first: String::new() })
    }

    /// Names this process and its `supervisor`: while one of them is at work, nobody else may
    /// restore anything.
    pub fn begin(&mut self, supervisor: u32) -> io::Result<()> {
        let started = |pid: u32| format!("{pid} {}", start_time(pid).unwrap_or_default());
        let (own, supervisor) = (started(std::process::id()), started(supervisor));
        self.first = format!("{own} {supervisor}\n");
        self.file.write_all(self.first.as_bytes())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn add(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(line.as_bytes())
    }

    /// Replaces all its lines but the first.
    pub fn rewrite<'a>(&mut self, known: impl Iterator<Item = &'a Before>) -> io::Result<()> {
        let text = known.fold(self.first.clone(), |text, before| text + &before.line());
        let new = successor(&self.path);
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&new, &self.path)?;
        self.file = file;
        Ok(())
    }
}

/// Where a journal is written before it replaces the one at `path`.
fn successor(path: &Path) -> PathBuf {
    let mut new = path.as_os_str().to_owned();
    new.push(NEW);
    new.into()
}

/// Whether process `pid`, which started at `start`, runs: a zombie does not.
fn at_work(pid: u32, start: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    start_time(pid) == Some(start) && !matches!(state, None | Some('Z' | 'X'))
}

/// Where the journal of process `pid` is.
pub fn path_of(directory: &Path, pid: u32) -> PathBuf {
    directory.join(format!("{PREFIX}{pid}"))
}

/// The findings of [`restore`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Threads of journals whose writers are gone that had their slices back.
    pub threads: usize,
    /// CPUs whose reservation for vCPUs was given back.
    pub cpus: usize,
    /// Guards that are still at work, or whose supervisors are: their threads were left alone.
    pub active: Vec<u32>,
    /// Things that could not be restored, and why.
    pub failed: Vec<String>,
    /// Threads that have another scheduling policy now, so that their slices cannot be set.
    pub later: Vec<Before>,
    /// Journals that stay, for one of these reasons.
    pub kept: Vec<PathBuf>,
}

impl Restored {
    /// Things that are not as they were before, and why.
    pub fn missing(&self) -> Vec<String> {
        let later = self.later.iter().map(|before| {
            format!("thread {}: it has another scheduling policy than SCHED_OTHER now", before.tid)
        });
        self.failed.iter().cloned().chain(later).collect()
    }
}

/// Undoes what dead guards left, by the journals in `directory`, and removes these.
pub fn restore(directory: &Path) -> io::Result<Restored> {
    let mut restored = Restored::default();
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(restored),
        entries => entries?,
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Half a journal may be in a new one, and the whole is beside it.
        if !name.starts_with(PREFIX) || name.ends_with(NEW) {
            continue;
        }
        let path = entry.path();
        let text = fs::read_to_string(&path)?;
        let first = text.lines().next().unwrap_or_default();
        let numbers: Vec<u64> = first.split(' ').filter_map(|n| n.parse().ok()).collect();
        let working = numbers.chunks_exact(2).any(|own| at_work(own[0] as u32, own[1]));
        match numbers.first() {
            Some(&pid) if working => restored.active.push(pid as u32),
            _ => restore_one(&path, &mut restored)?,
        }
    }
    Ok(restored)
}

/// Undoes what the journal at `path` tells of, and removes it.
pub fn restore_one(path: &Path, restored: &mut Restored) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    // Its writer died while it replaced this one.
    match fs::remove_file(successor(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let missing = |restored: &Restored| restored.failed.len() + restored.later.len();
    let before_this = missing(restored);
    for server in text.lines().skip(1).filter_map(Server::parse) {
        match server.restore() {
            Ok(had) => restored.cpus += usize::from(had),
            Err(error) => {
                restored.failed.push(format!("what is reserved on CPU {}: {error}", server.cpu));
            }
        }
    }
    // The first line names the processes. Of a thread's lines the last one counts: somebody gave it
    // another slice after the one before.
    let lines = text.lines().skip(1).filter_map(Before::parse);
    let last: BTreeMap<_, _> = lines.map(|b| ((b.tid, b.start_time), b)).collect();
    for before in last.into_values() {
        match before.restore() {
            Ok(had) => restored.threads += usize::from(had),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => restored.later.push(before),
            Err(error) => restored.failed.push(format!("thread {}: {error}", before.tid)),
        }
    }
    if missing(restored) == before_this {
        fs::remove_file(path)?;
    } else {
        restored.kept.push(path.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let own = Some(Duration::from_micros(1500));
        for (slice, short) in [(None, None), (own, None), (None, own), (own, own)] {
            let before = Before { tid: 7, start_time: 99, slice, short };
            assert_eq!(Before::parse(before.line().trim_end()), Some(before));
        }
        // An older guard's.
        assert_eq!(Before::parse("7 99 1500000").unwrap().slice, own);
        // The last line of a writer that was killed in the middle of it.
        for torn in ["", "7", "7 99", "7 99 x", "7 99 0 x", "7 99 0 0 1"] {
            assert_eq!(Before::parse(torn), None, "{torn:?}");
        }
    }

    #[test]
    fn a_journal_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let before = |tid| Before { tid, start_time: 9, slice: None, short: None };
        let mut journal = Journal::create(dir.path()).unwrap();
        journal.begin(u32::MAX).unwrap();
        let first = fs::read_to_string(journal.path()).unwrap();
        let lines = |tids: &[u32]| {
            first.clone() + &tids.iter().map(|&tid| before(tid).line()).collect::<String>()
        };
        for tid in [1, 2, 1] {
            journal.add(&before(tid).line()).unwrap();
        }
        assert_eq!(fs::read_to_string(journal.path()).unwrap(), lines(&[1, 2, 1]));
        journal.rewrite([before(2)].iter()).unwrap();
        journal.add(&before(3).line()).unwrap();
        assert_eq!(fs::read_to_string(journal.path()).unwrap(), lines(&[2, 3]));

        // The writer is killed while it replaces its journal.
        fs::write(successor(journal.path()), "half").unwrap();
        let restored = restore(dir.path()).unwrap();
        assert_eq!(restored, Restored { active: vec![std::process::id()], ..Default::default() });
        assert!(successor(journal.path()).exists(), "the journal of a living guard");
        let mut restored = Restored::default();
        restore_one(journal.path(), &mut restored).unwrap();
        assert_eq!(restored, Restored::default(), "they have ended");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // The file of an earlier process with the same number does not hinder.
        fs::write(successor(journal.path()), "half").unwrap();
        let mut journal = Journal::create(dir.path()).unwrap();
        journal.begin(u32::MAX).unwrap();
        journal.rewrite([].iter()).unwrap();
        assert_eq!(fs::read_to_string(journal.path()).unwrap(), first);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn one_has_its_turn_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let has = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let turn = Turn::take(dir.path()).unwrap();
                        assert_eq!(has.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        has.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
        let missing = Turn::take(&dir.path().join("none")).err().unwrap();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_dead_guards_slices_are_taken_back() {
        if slice::supported().is_err() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (ready, tid) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            ready.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = wait.recv();
        });
        let tid = tid.recv().unwrap();
        let default = slice::default().unwrap();
        let before = Before::of(tid, &[default], slice::MIN).unwrap();
        assert_eq!(before.slice, None);
        slice::set(tid, Some(slice::MIN)).unwrap();

        // Process 1 did not start at 1 of this clock's ticks before the boot: it is "dead".
        let other = Before { start_time: before.start_time + 1, ..before };
        let path = dir.path().join("slices-1");
        fs::write(
            &path,
            format!("1 18446744073709551615 1 7\n{}{}7 9", other.line(), before.line()),
        )
        .unwrap();
        let mut journal = Journal::create(dir.path()).unwrap();
        journal.begin(u32::MAX).unwrap();
        journal.add(&before.line()).unwrap();

        let restored = restore(dir.path()).unwrap();
        assert_eq!(restored.active, [std::process::id()], "the journal of a living guard");
        assert_eq!((restored.threads, restored.failed), (1, vec![]), "the other one has ended");
        assert_eq!(slice::get(tid).unwrap(), default);
        assert!(!path.exists());
        restore_one(journal.path(), &mut Restored::default()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(restore(Path::new("/nonexistent/reprieve")).unwrap(), Restored::default());
        // The last of a thread's lines counts.
        let later = Before { slice: Some(3 * slice::MIN), ..before };
        slice::set(tid, Some(slice::MIN)).unwrap();
        let lines = [before, later].map(|before| before.line()).concat();
        fs::write(&path, format!("1 18446744073709551615 1 7\n{lines}")).unwrap();
        assert_eq!(restore(dir.path()).unwrap().threads, 1);
        assert_eq!(slice::get(tid).unwrap(), 3 * slice::MIN);
        // A slice that somebody else set since stays.
        slice::set(tid, Some(2 * slice::MIN)).unwrap();
        before.restore().unwrap();
        assert_eq!(slice::get(tid).unwrap(), 2 * slice::MIN);
        // A thread with a real-time priority keeps its slice until it is an ordinary one again.
        let class = |policy, sched_priority| {
            let priority = libc::sched_param { sched_priority };
            // SAFETY: `priority` is valid for the read.
            unsafe { libc::sched_setscheduler(tid as libc::pid_t, policy, &priority) }
        };
        slice::set(tid, Some(slice::MIN)).unwrap();
        fs::write(&path, format!("1 18446744073709551615 1 7\n{}", before.line())).unwrap();
        // Without the right to such a priority it stays an ordinary one.
        if class(libc::SCHED_FIFO, 1) == 0 {
            let restored = restore(dir.path()).unwrap();
            assert_eq!((restored.threads, &restored.failed), (0, &vec![]));
            assert_eq!((restored.later, restored.kept), (vec![before], vec![path.clone()]));
            assert_eq!(class(libc::SCHED_OTHER, 0), 0);
        }
        assert_eq!(restore(dir.path()).unwrap().threads, 1);
        assert_eq!(slice::get(tid).unwrap(), default);
        drop(done);
        thread.join().unwrap();
    }
}
