// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve ipc` as users run it, with programs that use System V IPC.

mod manual;
mod neighbours;
mod oracle;
mod room;
mod suites;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The command, beside which the preload library has been built.
fn reprieve() -> Command {
    static BUILT: OnceLock<()> = OnceLock::new();
    let command = Path::new(env!("CARGO_BIN_EXE_reprieve"));
    BUILT.get_or_init(|| {
        let profile = command.parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--offline", "-p", "reprieve-ipc-preload", "--target-dir"]);
        build.arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            build.arg("--release");
        }
        done(&mut build);
    });
    let mut command = Command::new(command);
    command.arg("ipc").env_remove("REPRIEVE_IPC_LIBRARY").env_remove("LD_PRELOAD");
    command
}

fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// A namespace that goes with the value.
struct Namespace(tempfile::TempDir);

impl Namespace {
    fn new() -> Namespace {
        // `make test` removes its own: a test that is killed leaves its namespace.
        let parent = std::env::var_os("TEST_SHM").unwrap_or_else(|| "/dev/shm".into());
        let parent = Path::new(&parent);
        Namespace(if parent.is_dir() {
            tempfile::tempdir_in(parent).unwrap()
        } else {
            tempfile::tempdir().unwrap()
        })
    }

    fn command(&self, name: &str) -> Command {
        let mut command = reprieve();
        command.arg(name).arg("--dir").arg(self.0.path().join("ns"));
        command
    }

    fn run(&self, command: &[&str]) -> Command {
        let mut run = self.command("run");
        run.arg("--").args(command);
        run
    }

    fn objects(&self) -> Vec<serde_json::Value> {
        serde_json::from_str(&done(self.command("ls").arg("--json"))).unwrap()
    }
}

/// Whether there is System V IPC to compare with.
fn kernel_has_ipc() -> bool {
    let has = Path::new("/proc/sys/kernel/sem").exists();
    if !has {
        println!("SKIPPED: the kernel has no System V IPC here");
    }
    has
}

#[test]
fn objects_are_listed_shown_and_removed() {
    let n = Namespace::new();
    let none = n.command("ls").output().unwrap();
    assert_eq!(none.status.code(), Some(1));
    assert!(texts(&none).1.contains("no namespace"), "{none:?}");
    done(&mut n.run(&["ipcmk", "-S", "3"]));
    done(&mut n.run(&["ipcmk", "-Q"]));
    done(&mut n.run(&["ipcmk", "-M", "5000"]));
    let objects = n.objects();
    let kinds: Vec<_> = objects.iter().map(|o| o["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["sem", "msg", "shm"]);
    assert_eq!((&objects[0]["semaphores"], &objects[2]["bytes"]), (&3.into(), &5000.into()));
    let names: Vec<String> =
        objects.iter().map(|o| format!("{}:{}", o["kind"].as_str().unwrap(), o["id"])).collect();
    assert!(done(&mut n.command("ls")).contains("3 semaphores"));
    assert!(done(n.command("stat").arg(&names[0])).contains("semaphore 2: 0"));
    done(n.command("rm").args(&names[..2]));
    let again = n.command("rm").arg(&names[0]).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(texts(&again).1.contains(&names[0]));
    assert_eq!(n.objects().len(), 1);
    done(n.command("rm").arg("--all"));
    assert_eq!(n.objects().len(), 0);
    let files = fs::read_dir(n.0.path().join("ns")).unwrap().map(|f| f.unwrap().file_name());
    let mut files: Vec<_> = files.collect();
    files.sort();
    assert_eq!(files, ["lock", "space"]);
}

#[test]
fn programs_that_cannot_use_it_are_refused() {
    let n = Namespace::new();
    let refused = |program: &Path, why: &str| {
        let output = n.run(&[program.to_str().unwrap()]).output().unwrap();
        let (_, err) = texts(&output);
        assert!(output.status.code() == Some(1) && err.contains(why), "{why}: {output:?}");
    };
    let directory = tempfile::tempdir().unwrap();
    let own = |name: &str| directory.path().join(name);
    let source = own("main.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    done(Command::new("cc").arg("-static").arg(&source).arg("-o").arg(own("static")));
    refused(&own("static"), "statically linked");
    done(Command::new("cc").arg(&source).arg("-o").arg(own("plain")));
    done(&mut n.run(&[own("plain").to_str().unwrap()]));
    fs::set_permissions(own("plain"), Permissions::from_mode(0o4755)).unwrap();
    refused(&own("plain"), "set-uid");
    fs::write(own("script"), format!("#!{}\n", own("static").display())).unwrap();
    fs::set_permissions(own("script"), Permissions::from_mode(0o755)).unwrap();
    refused(&own("script"), "statically linked");
    refused(&source, "not a 64-bit ELF program");
    let usage = reprieve().args(["stat", "what:1"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn handlers_may_use_what_they_interrupt() {
    let n = Namespace::new();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("handler");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/handler.c");
    done(Command::new("cc").args(["-O2", "-Wall", source, "-o"]).arg(&program));
    let out = done(&mut n.run(&[program.to_str().unwrap()]));
    let mut numbers = out.split_whitespace();
    let (handled, value) = (numbers.next(), numbers.next());
    assert!(handled.is_some() && handled == value, "{out}");
}

#[test]
fn handlers_are_put_off_however_they_were_installed_and_leave_a_call() {
    let n = Namespace::new();
    let directory = tempfile::tempdir().unwrap();
    let program = compiled("signals", directory.path());
    let handlers = ["sigset", "ssignal", "__sigaction", "siginterrupt"];
    for how in handlers.into_iter().chain(["jump", "cancel", "first", "forks", "daemon"]) {
        assert_eq!(done(&mut n.run(&[program.to_str().unwrap(), how])), "fine\n", "{how}");
    }
}

/// A C program of this directory's.
fn compiled(name: &str, to: &Path) -> PathBuf {
    let source = format!("{}/tests/ipc/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let program = to.join(name);
    let flags = ["-O2", "-Wall", "-Wno-deprecated-declarations", "-pthread"];
    done(Command::new("cc").args(flags).arg(source).arg("-o").arg(&program));
    program
}

/// As in the kernel, which copies it when a call begins.
#[test]
fn memory_that_changes_or_is_not_there_concerns_nobody_else() {
    let n = Namespace::new();
    let directory = tempfile::tempdir().unwrap();
    let program = compiled("memory", directory.path());
    if kernel_has_ipc() {
        assert_eq!(done(&mut Command::new(&program)), "fine\n");
    }
    assert_eq!(done(&mut n.run(&[program.to_str().unwrap()])), "fine\n");
}

#[test]
fn programs_with_address_sanitizer_start() {
    let n = Namespace::new();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("calls");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ipc/calls.c");
    done(Command::new("gcc").args(["-fsanitize=address", source, "-o"]).arg(&program));
    assert_eq!(done(&mut n.run(&[program.to_str().unwrap()])), "fine\n");
    assert_eq!(n.objects().len(), 0);
}

/// Calls of Perl's modules, and calls by number; dies where something is wrong.
const PERL: &str = r#"
use strict; use warnings;
use IPC::SysV qw(IPC_PRIVATE IPC_CREAT IPC_NOWAIT IPC_STAT IPC_RMID SEM_UNDO S_IRUSR S_IWUSR ftok);
use IPC::Semaphore; use IPC::Msg; use IPC::SharedMem; use Errno qw(EAGAIN EIDRM EINVAL);
my $mode = S_IRUSR | S_IWUSR;
my $sem = IPC::Semaphore->new(ftok($0) || IPC_PRIVATE, 4, $mode | IPC_CREAT) or die "semget: $!";
$sem->setall(1, 2, 3, 4) or die; join(',', $sem->getall) eq '1,2,3,4' or die;
$sem->op(0, -1, IPC_NOWAIT, 3, 5, SEM_UNDO) or die; $sem->getval(3) == 9 or die;
$sem->op(0, -1, IPC_NOWAIT) and die; $! == EAGAIN or die "$!";
$sem->getpid(3) == $$ or die; $sem->stat->nsems == 4 or die;
# A child's adjustments go with it, also when it was killed; they outlive exec.
for my $end ('exit', 'kill', 'exec') {
    my $child = fork // die;
    if (!$child) {
        $sem->op(1, 7, SEM_UNDO) or die;
        kill 9, $$ if $end eq 'kill';
        exec $^X, '-MIPC::SysV', '-e', 'exit(semctl($ARGV[0], 1, 12, 0) == 9 ? 0 : 3)', $sem->id
            if $end eq 'exec';
        exit 0;
    }
    waitpid $child, 0; $? == ($end eq 'kill' ? 9 : 0) or die "$end: $?";
    $sem->getval(1) == 2 or die "$end: " . $sem->getval(1);
}
my $waiter = fork // die;
if (!$waiter) { $sem->op(0, -1, 0) and exit 1; exit($! == EIDRM ? 0 : 2) }
select undef, undef, undef, 0.001 until $sem->getncnt(0) == 1;
$sem->remove or die; waitpid $waiter, 0; $? == 0 or die "EIDRM: $?";
my $msg = IPC::Msg->new(IPC_PRIVATE, $mode | IPC_CREAT) or die;
$msg->snd(7, 'seven') or die; $msg->snd(3, 'three') or die; $msg->stat->qnum == 2 or die;
my $sender = fork // die;
if (!$sender) { $msg->snd(9, 'child') or exit 1; exit 0 }
my $text; $msg->rcv($text, 100, 9, 0) == 9 && $text eq 'child' or die; waitpid $sender, 0;
$msg->rcv($text, 100, -5, 0) == 3 && $text eq 'three' or die;
$msg->rcv($text, 100, 0, IPC_NOWAIT) == 7 && $text eq 'seven' or die; $msg->remove or die;
my $shm = IPC::SharedMem->new(IPC_PRIVATE, 100, $mode | IPC_CREAT) or die; $shm->attach or die;
my $writer = fork // die;
if (!$writer) { $shm->write('from the child', 0, 14); exit 0 }
waitpid $writer, 0; $shm->read(0, 14) eq 'from the child' or die;
$shm->stat->nattch == 1 or die; $shm->remove or die; $shm->stat->nattch == 1 or die;
$shm->detach or die; shmctl($shm->id, IPC_STAT, $text) and die; $! == EINVAL or die;
if (`uname -m` eq "x86_64\n") {
    my $id = syscall(64, 0, 1, 0600); $id >= 0 or die "SYS_semget: $!";
    my $op = pack 's3', 0, 3, 0; syscall(65, $id, $op, 1) == 0 or die;
    syscall(66, $id, 0, 12, 0) == 3 or die; syscall(66, $id, 0, IPC_RMID, 0) == 0 or die;
}
print "fine\n";
"#;

#[test]
fn perl_modules_work() {
    let n = Namespace::new();
    let script = n.0.path().join("script.pl");
    fs::write(&script, PERL).unwrap();
    assert_eq!(done(&mut n.run(&["perl", script.to_str().unwrap()])), "fine\n");
    assert_eq!(n.objects().len(), 0);
}

/// A line of `make test-programs`.
fn tell(program: &str, counts: impl std::fmt::Display) {
    println!("programs: {program}: {counts}");
}

/// Where Debian has PostgreSQL's programs.
fn postgresql() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("install postgresql");
    let newest = versions.map(|v| v.unwrap().path().join("bin")).max();
    newest.filter(|bin| bin.join("initdb").exists()).expect("install postgresql")
}

/// Runs as somebody else than root, whom PostgreSQL refuses.
fn as_nobody(n: &Namespace, script: &str) -> Command {
    let mut run = n.run(&["bash", "-euc", script]);
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        use std::os::unix::process::CommandExt;
        std::os::unix::fs::chown(n.0.path(), Some(65534), Some(65534)).unwrap();
        run.uid(65534).gid(65534);
    }
    run.current_dir(n.0.path()).env("HOME", n.0.path()).env_remove("XDG_RUNTIME_DIR");
    run
}

/// A database that is set up, loaded, asked, killed and started again, in the working directory.
fn database() -> String {
    format!(
        r#"
PATH={}:$PATH
initdb -D data -A trust -U me >log.initdb
cat >>data/postgresql.conf <<END
shared_memory_type = sysv
dynamic_shared_memory_type = sysv
listen_addresses = ''
unix_socket_directories = '$PWD'
fsync = off
END
export PGHOST=$PWD PGUSER=me PGDATABASE=postgres
trap 'pg_ctl -D data -m immediate stop >/dev/null 2>&1 || true' EXIT
pg_ctl -D data -l log -w start >/dev/null
pgbench -q -i -s 1 2>/dev/null
pgbench -n -c 4 -j 2 -t 200 >log.pgbench
psql -qAtc "set parallel_setup_cost = 0; set parallel_tuple_cost = 0;
	set min_parallel_table_scan_size = 0; select count(*) from pgbench_accounts"
kill -9 "$(head -n 1 data/postmaster.pid)"
# Its children notice, and end; until then a new server refuses, as it should.
until pg_ctl -D data -l log -w start >/dev/null 2>&1; do sleep 0.2; done
psql -Atc 'select count(*) from pgbench_history'
pg_ctl -D data -w stop >/dev/null
"#,
        postgresql().display()
    )
}

/// The output of [`database`]: rows, and transactions.
const DATABASE: &str = "100000\n800\n";

#[test]
#[ignore = "installs a database: make test-lab"]
fn postgresql_works_and_restarts_after_a_kill() {
    let n = Namespace::new();
    assert_eq!(done(&mut as_nobody(&n, &database())), DATABASE);
    assert_eq!(n.objects().len(), 0);
    tell("PostgreSQL", "800 of 800 transactions are there after a kill, 100000 of 100000 rows");
}

#[test]
#[ignore = "takes all CPUs for a while: make test-lab"]
fn stress_ng_works() {
    let n = Namespace::new();
    let arguments = "stress-ng --temp-path . --verify --sem-sysv 4 --sem-sysv-ops 20000 --msg 4 \
                     --msg-ops 20000 --shm-sysv 2 --shm-sysv-ops 20 --shm-sysv-bytes 1M";
    done(&mut as_nobody(&n, arguments));
    tell("stress-ng", "20000 of 20000 operations on semaphores, as many on queues, 20 on segments");
}
