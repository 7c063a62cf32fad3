// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve ipc ls`, `rm` and `stat`.

use super::past;
use anyhow::{Context as _, Result, anyhow, bail};
use reprieve_ipc::{MsgStatus, Namespace, SHM_DEST, SHM_LOCKED, SemStatus, ShmStatus, Status};
use reprieve_page::output::{print, print_json, tell};
use serde::Serialize;
use std::ffi::CStr;
use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Sem,
    Msg,
    Shm,
}

/// An object as the user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Name {
    kind: Kind,
    id: i32,
}

/// An object as the user names it: by its id, or by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Id(Name),
    Key(Kind, i32),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Wanted, String> {
        let (kind, name) = text.split_once(':').unwrap_or((text, ""));
        let kind = match kind {
            "sem" => Kind::Sem,
            "msg" => Kind::Msg,
            "shm" => Kind::Shm,
            _ => return Err("give sem:ID, msg:ID or shm:ID".into()),
        };
        if let Some(key) = name.strip_prefix("0x") {
            let key = u32::from_str_radix(key, 16).ok().filter(|&key| key != 0);
            let key = key.ok_or("the part after 0x is a key in hexadecimal, and not 0")?;
            return Ok(Wanted::Key(kind, key as i32));
        }
        let id = name.parse().ok().filter(|&id| id >= 0);
        let id = id.ok_or("the part after the colon is an id, or a key that begins with 0x")?;
        Ok(Wanted::Id(Name { kind, id }))
    }
}

impl Wanted {
    fn find(self, n: &Namespace) -> Result<Name> {
        let (kind, key) = match self {
            Wanted::Id(name) => return Ok(name),
            Wanted::Key(kind, key) => (kind, key),
        };
        let found = match kind {
            Kind::Sem => n.semget(key, 0, 0),
            Kind::Msg => n.msgget(key, 0),
            Kind::Shm => n.shmget(key, 0, 0),
        };
        let id = found.with_context(|| format!("key 0x{key:08x}"))?;
        Ok(Name { kind, id })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Sem => "sem",
            Kind::Msg => "msg",
            Kind::Shm => "shm",
        };
        write!(f, "{kind}:{}", self.id)
    }
}

/// An object, as JSON and as a line.
#[derive(Serialize)]
struct Object {
    #[serde(flatten)]
    name: Name,
    key: i32,
    uid: u32,
    gid: u32,
    creator_uid: u32,
    creator_gid: u32,
    /// Octal, as users write it.
    mode: String,
    changed: u64,
    #[serde(flatten)]
    details: Details,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Details {
    Sem {
        semaphores: u64,
        last_operation: u64,
    },
    Msg {
        messages: u64,
        bytes: u64,
        most_bytes: u64,
        sender: i32,
        receiver: i32,
        sent: u64,
        received: u64,
    },
    Shm {
        bytes: u64,
        attached: u64,
        removed: bool,
        locked: bool,
        creator: i32,
        last: i32,
        attach_time: u64,
        detach_time: u64,
    },
}

impl Object {
    fn new(kind: Kind, status: &Status, details: Details) -> Object {
        Object {
            name: Name { kind, id: status.id },
            key: status.key,
            uid: status.uid,
            gid: status.gid,
            creator_uid: status.cuid,
            creator_gid: status.cgid,
            mode: format!("{:03o}", status.mode & 0o777),
            changed: status.ctime,
            details,
        }
    }

    fn sem(s: &SemStatus) -> Object {
        let details = Details::Sem { semaphores: s.count, last_operation: s.otime };
        Object::new(Kind::Sem, &s.status, details)
    }

    fn msg(s: &MsgStatus) -> Object {
        let details = Details::Msg {
            messages: s.messages,
            bytes: s.bytes,
            most_bytes: s.most_bytes,
            sender: s.sender,
            receiver: s.receiver,
            sent: s.stime,
            received: s.rtime,
        };
        Object::new(Kind::Msg, &s.status, details)
    }

    fn shm(s: &ShmStatus) -> Object {
        let details = Details::Shm {
            bytes: s.size,
            attached: s.attached,
            removed: s.status.mode & SHM_DEST != 0,
            locked: s.status.mode & SHM_LOCKED != 0,
            creator: s.creator,
            last: s.last,
            attach_time: s.atime,
            detach_time: s.dtime,
        };
        Object::new(Kind::Shm, &s.status, details)
    }

    fn columns(&self) -> String {
        let key = format!("0x{:08x}", self.key);
        let (name, user) = (self.name.to_string(), user_name(self.uid));
        let head = format!("{name:<12} {key:<12} {user:<10} {:<6}", self.mode);
        match &self.details {
            Details::Sem { semaphores, .. } => format!("{head} {semaphores} semaphores"),
            Details::Msg { messages, bytes, .. } => {
                format!("{head} {messages} messages, {bytes} bytes")
            }
            Details::Shm { bytes, attached, removed, .. } => {
                let removed = if *removed { ", removed" } else { "" };
                format!("{head} {bytes} bytes, attached {attached} times{removed}")
            }
        }
    }
}

/// A user's name, if there is one.
fn user_name(user: u32) -> String {
    let mut buffer = [0; 4096];
    // SAFETY: plain data, and a buffer that is valid for its length and outlives the name.
    unsafe {
        let (mut entry, mut found) = (std::mem::zeroed::<libc::passwd>(), std::ptr::null_mut());
        libc::getpwuid_r(user, &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found);
        if found.is_null() {
            return user.to_string();
        }
        CStr::from_ptr(entry.pw_name).to_string_lossy().into_owned()
    }
}

/// A time of the kernel's, for people.
fn date(seconds: u64) -> String {
    match seconds {
        0 => "never".into(),
        _ => {
            humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
        }
    }
}

/// The namespace of that directory, or the user's. Makes none.
fn open(directory: Option<PathBuf>) -> Result<Namespace> {
    let directory = directory.unwrap_or_else(reprieve_ipc::default_directory);
    let name = directory.display();
    if !Namespace::is_there(&directory).with_context(|| format!("{name}: cannot look"))? {
        bail!("{name}: no namespace; `reprieve ipc run` makes one");
    }
    Ok(Namespace::open(std::path::absolute(directory)?)?)
}

fn all(n: &Namespace) -> Result<Vec<Object>> {
    let sets = (0..=n.sem_info()?.highest).filter_map(|slot| n.sem_slot_status(slot, true).ok());
    let mut all: Vec<Object> = sets.map(|(_, status)| Object::sem(&status)).collect();
    let queues = (0..=n.msg_info()?.highest).filter_map(|slot| n.msg_slot_status(slot, true).ok());
    all.extend(queues.map(|status| Object::msg(&status)));
    let segments =
        (0..=n.shm_info()?.highest).filter_map(|slot| n.shm_slot_status(slot, true).ok());
    all.extend(segments.map(|status| Object::shm(&status)));
    Ok(all)
}

pub fn list(directory: Option<PathBuf>, json: bool) -> Result<ExitCode> {
    let objects = all(&open(directory)?)?;
    if json {
        print_json(&objects)?;
    } else if !objects.is_empty() {
        let mut text =
            format!("{:<12} {:<12} {:<10} {:<6} use\n", "object", "key", "owner", "mode");
        objects.iter().for_each(|object| text += &(object.columns() + "\n"));
        print(&text)?;
    }
    past::processes().iter().for_each(tell);
    Ok(ExitCode::SUCCESS)
}

pub fn remove(
    directory: Option<PathBuf>,
    wanted: Option<&[Wanted]>,
    json: bool,
) -> Result<ExitCode> {
    let n = open(directory)?;
    let names: Vec<Name> = match wanted {
        Some(wanted) => wanted.iter().map(|wanted| wanted.find(&n)).collect::<Result<_>>()?,
        None => all(&n)?.iter().map(|object| object.name).collect(),
    };
    let mut removed = Vec::new();
    let mut failed = Vec::new();
    for name in names {
        let result = match name.kind {
            Kind::Sem => n.remove_sem(name.id),
            Kind::Msg => n.remove_msg(name.id),
            Kind::Shm => n.remove_shm(name.id),
        };
        match result {
            Ok(()) => removed.push(name),
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    if json {
        print_json(&removed)?;
    }
    if failed.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(anyhow!(failed.join("\n"))) }
}

#[derive(Serialize)]
struct Semaphore {
    value: i32,
    last_pid: i32,
    wait_for_more: i32,
    wait_for_zero: i32,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    object: Object,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Vec<Semaphore>>,
}

pub fn show(directory: Option<PathBuf>, wanted: Wanted, json: bool) -> Result<ExitCode> {
    let n = open(directory)?;
    let name = wanted.find(&n)?;
    let id = name.id;
    let (object, values) = match name.kind {
        Kind::Sem => (n.sem_status(id).map(|s| Object::sem(&s)), semaphores(&n, id).ok()),
        Kind::Msg => (n.msg_status(id).map(|s| Object::msg(&s)), None),
        Kind::Shm => (n.shm_status(id).map(|s| Object::shm(&s)), None),
    };
    let object = object.with_context(|| format!("{name}"))?;
    let shown = Shown { object, values };
    if json {
        print_json(&shown)?;
    } else {
        print(&text(&shown)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn semaphores(n: &Namespace, id: i32) -> reprieve_ipc::Result<Vec<Semaphore>> {
    let count = n.sem_status(id)?.count as i32;
    (0..count)
        .map(|num| {
            Ok(Semaphore {
                value: n.sem_value(id, num)?,
                last_pid: n.sem_pid(id, num)?,
                wait_for_more: n.sem_waiters(id, num, false)?,
                wait_for_zero: n.sem_waiters(id, num, true)?,
            })
        })
        .collect()
}

fn text(shown: &Shown) -> Result<String> {
    let mut text = shown.object.columns() + "\n";
    let value = serde_json::to_value(&shown.object)?;
    for (name, value) in value.as_object().into_iter().flatten() {
        let is_user = matches!(&name[..], "uid" | "creator_uid");
        let is_time = matches!(&name[..], "changed" | "sent" | "received" | "last_operation")
            || name.ends_with("_time");
        let value = match value.as_u64() {
            Some(user) if is_user => user_name(user as u32),
            Some(seconds) if is_time => date(seconds),
            _ => value.to_string(),
        };
        writeln!(text, "  {:<15} {value}", name.replace('_', " "))?;
    }
    for (num, s) in shown.values.iter().flatten().enumerate() {
        writeln!(
            text,
            "  semaphore {num}: {} (last process {}; {} wait for more, {} for zero)",
            s.value, s.last_pid, s.wait_for_more, s.wait_for_zero
        )?;
    }
    Ok(text)
}
