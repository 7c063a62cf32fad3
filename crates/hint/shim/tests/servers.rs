// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much servers as Debian packages them do under load with the shim and without, in turns.
//! `--nocapture` shows the ratios.
//!
//! `cargo test -p reprieve-shim --test servers -- --ignored --nocapture`

mod common;

use common::{run, shim};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

/// Pairs of a run without and one with the shim.
const ROUNDS: usize = 5;
/// How long clients load a server in each run.
const LOAD: Duration = Duration::from_secs(1);
const CLIENTS: usize = 8;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs `measure` without and with the shim in turns, and prints the ratio of what it returns.
fn compare(what: &str, program: &str, measure: impl Fn(&mut Command) -> f64) {
    let shim = shim();
    // As the loader would start it.
    let mut loaded = Command::new(program);
    loaded.env("LD_TRACE_LOADED_OBJECTS", "1").env("LD_PRELOAD", &shim);
    assert!(run(&mut loaded).contains("libreprieve_locks.so"), "{program}");
    let mut rounds = vec![];
    for _ in 0..ROUNDS {
        let alone = measure(Command::new(program).env_remove("LD_PRELOAD"));
        rounds.push((alone, measure(Command::new(program).env("LD_PRELOAD", &shim))));
    }
    let ratio = median(rounds.iter().map(|(alone, with)| with / alone).collect());
    let alone = median(rounds.iter().map(|round| round.0).collect());
    let with = median(rounds.iter().map(|round| round.1).collect());
    println!(
        "programs: {what}: {alone:.0}/s alone, {with:.0}/s with the shim; ratio {ratio:.2} (median of {ROUNDS} rounds)"
    );
}

/// Ended when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// A connection, once the server takes some.
    fn connect(&mut self, socket: &Path) -> UnixStream {
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => return stream,
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
            if let Some(status) = self.0.try_wait().unwrap() {
                panic!("the server ended: {status}");
            }
        }
    }
}

/// Stores and reads until `end`; every client has the same few keys. The number of operations.
fn load(stream: UnixStream, client: usize, end: Instant) -> u64 {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    let mut line = String::new();
    let mut next = |reader: &mut BufReader<UnixStream>| {
        line.clear();
        reader.read_line(&mut line).unwrap();
        line.clone()
    };
    let mut operations = 0;
    while operations == 0 || Instant::now() < end {
        let key = operations % 4;
        // The client that wrote a value may change, but not what a value looks like.
        let value = format!("{client:04}").repeat(16);
        write!(writer, "set key{key} 0 0 {}\r\n{value}\r\n", value.len()).unwrap();
        assert_eq!(next(&mut reader), "STORED\r\n");
        write!(writer, "get key{key}\r\n").unwrap();
        assert_eq!(next(&mut reader), format!("VALUE key{key} 0 {}\r\n", value.len()));
        let mut found = vec![0; value.len()];
        reader.read_exact(&mut found).unwrap();
        assert!(found.chunks(4).all(|part| part == &found[..4]), "{found:?}");
        assert_eq!((next(&mut reader), next(&mut reader)), ("\r\n".into(), "END\r\n".into()));
        operations += 2;
    }
    operations
}

#[test]
#[ignore = "long, and loads the machine: make test-lab"]
fn memcached() {
    compare("memcached", "memcached", |server| {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        server.arg("-s").arg(&socket).args(["-t", "8", "-m", "64"]);
        // The user that it runs as if started by root; else without effect.
        server.args(["-u", "root"]);
        let mut server = Server(server.spawn().unwrap());
        let streams: Vec<_> = (0..CLIENTS).map(|_| server.connect(&socket)).collect();
        let begun = Instant::now();
        let client = |(n, stream)| thread::spawn(move || load(stream, n, begun + LOAD));
        let clients: Vec<_> = streams.into_iter().enumerate().map(client).collect();
        let operations: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
        operations as f64 / begun.elapsed().as_secs_f64()
    });
}

#[test]
#[ignore = "long, and loads the machine: make test-lab"]
fn rocksdb() {
    for (benchmark, what) in
        [("readwhilewriting", "RocksDB, readers and a writer"), ("overwrite", "RocksDB, writers")]
    {
        compare(what, "db_bench", |command| {
            let directory = tempfile::tempdir().unwrap();
            command.arg(format!("--benchmarks=fillseq,readrandom,{benchmark}"));
            command.arg(format!("--db={}", directory.path().display()));
            command.args(["--num=10000", "--threads=8", "--compression_type=none"]);
            let output = run(command);
            let line = |of: &str| {
                let start = format!("{of} ");
                let line = output.lines().find(|line| line.starts_with(&start));
                line.unwrap_or_else(|| panic!("{of}: {output}"))
            };
            assert!(line("readrandom").contains("(10000 of 10000 found)"), "{output}");
            let rate = line(benchmark).split(" ops/sec").next().unwrap();
            rate.split_whitespace().last().unwrap().parse().unwrap()
        });
    }
}
