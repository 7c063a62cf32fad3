// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads `raw.jsonl`.
//!
//! A run that died leaves a file that ends early, perhaps in the middle of a line: it is read as an
//! incomplete run. Any other damage (another schema, a line that is not a record, a sample outside
//! its phase) is an error that names file and line, because the figures could be wrong.

use crate::costs::Costs;
use crate::error::{Error, Result};
use crate::plan::{Plan, SCHEMA, Scenario};
use crate::record::{BOOTED_AGAIN, Death, HostInfo, HostPhase, LOUD, Record};
use reprieve_init::protocol::{
    Cpu, Fragmentation, GracePeriod, GuestInfo, Memory, PhaseResult, Sample,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Longest record, bytes; a longer line is an error.
const LONGEST_LINE: u64 = 16 << 20;

/// A run as it was recorded.
#[derive(Clone, Debug)]
pub struct Run {
    pub dir: PathBuf,
    pub plan: Plan,
    pub started: String,
    pub host: HostInfo,
    pub guests: Vec<Guest>,
    /// The costs of switches, exits and interrupts there, if it was measured.
    pub costs: Option<Costs>,
    /// In the order in which they ran.
    pub phases: Vec<Phase>,
    pub notices: Vec<String>,
    /// Whether everything planned was done.
    pub complete: bool,
    /// Why not.
    pub reason: Option<String>,
}

/// A VM that has booted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Guest {
    pub vm: String,
    /// Index into `plan.variants`, for guests under test.
    pub variant: Option<usize>,
    pub info: GuestInfo,
    pub boot_ms: u64,
}

/// A phase with its samples. Times in ns since it began.
#[derive(Clone, Debug)]
pub struct Phase {
    pub id: u32,
    pub variant: usize,
    pub repeat: u32,
    pub scenario: Scenario,
    pub grace_periods: Vec<GracePeriod>,
    /// Age of the one that was in progress at the end.
    pub open_ns: Option<u64>,
    pub memory: Vec<Memory>,
    pub fragmentation: Vec<Fragmentation>,
    pub cpu: Vec<Cpu>,
    /// `None` if the guest or the run died in this phase.
    pub end: Option<(PhaseResult, HostPhase)>,
    /// The guest died of its load in this phase, which is the phase's result.
    pub death: Option<Death>,
}

impl Phase {
    fn new(id: u32, variant: usize, repeat: u32, scenario: Scenario) -> Phase {
        Phase {
            id,
            variant,
            repeat,
            scenario,
            grace_periods: vec![],
            open_ns: None,
            memory: vec![],
            fragmentation: vec![],
            cpu: vec![],
            end: None,
            death: None,
        }
    }

    /// Whether it has a result.
    pub fn is_over(&self) -> bool {
        self.end.is_some() || self.death.is_some()
    }

    /// Whether its grace periods are those of its beginning only, because trace events were lost.
    pub fn is_cut(&self) -> bool {
        let Some((result, _)) = &self.end else { return false };
        // Runs of earlier versions do not tell until when none was lost.
        let until = result.cost.trace_until_ns;
        result.cost.trace_lost > 0 && until.is_none_or(|until| until < result.elapsed_ns)
    }

    /// Number of samples of all kinds.
    pub fn samples(&self) -> usize {
        self.grace_periods.len() + self.memory.len() + self.fragmentation.len() + self.cpu.len()
    }

    /// Share (0 to 1) of the machine's CPU time that other work than the run used, if it is known.
    pub fn other_busy(&self) -> Option<f64> {
        let (_, host) = self.end.as_ref()?;
        host.other_busy.filter(|share| share.is_finite()).map(|share| share.clamp(0.0, 1.0))
    }

    /// Whether so much that the phase's figures decide nothing.
    pub fn is_loud(&self) -> bool {
        self.other_busy().is_some_and(|share| share > LOUD)
    }

    fn add(&mut self, sample: Sample) {
        match sample {
            Sample::GracePeriod(period) => self.grace_periods.push(period),
            Sample::OpenGracePeriod { open_ns, .. } => self.open_ns = Some(open_ns),
            Sample::Memory(memory) => self.memory.push(memory),
            Sample::Fragmentation(fragmentation) => self.fragmentation.push(fragmentation),
            Sample::Cpu(cpu) => self.cpu.push(cpu),
        }
    }

    /// Guests send samples by kind; the report needs them in the order of time.
    fn sort(&mut self) {
        self.grace_periods.sort_by_key(|g| g.start_ns);
        self.memory.sort_by_key(|m| m.t_ns);
        self.fragmentation.sort_by_key(|f| f.t_ns);
        self.cpu.sort_by_key(|c| c.t_ns);
    }
}

impl Run {
    /// The phases that are over; of a phase that was run again, the last one.
    pub fn measured(&self, variant: usize, scenario: Scenario) -> BTreeMap<u32, &Phase> {
        self.phases
            .iter()
            .filter(|p| p.variant == variant && p.scenario == scenario && p.is_over())
            .map(|p| (p.repeat, p))
            .collect()
    }
}

/// Reads `dir/raw.jsonl`.
///
/// # Errors
/// [`Error::Io`] when the file cannot be read; [`Error::Format`], naming the line, when it is not a
/// run's record of this schema.
pub fn load(dir: &Path) -> Result<Run> {
    let path = dir.join("raw.jsonl");
    let mut lines = Lines {
        reader: BufReader::with_capacity(1 << 18, File::open(&path).map_err(Error::io(&path))?),
        path: &path,
        number: 0,
        buf: vec![],
    };
    let Some(run) = lines.first(dir)? else {
        return Err(lines.wrong("the run died before it recorded anything; nothing to report"));
    };
    let (phases, louder) = (BTreeMap::new(), BTreeMap::new());
    let mut reading = Reading { run, phases, louder, ended: false, again: false };
    while let Some(record) = lines.next()? {
        reading.add(record).map_err(|message| lines.wrong(message))?;
    }
    Ok(reading.finish())
}

/// A run of which a part has been read.
struct Reading {
    run: Run,
    /// Index into `run.phases`, by the phase's number.
    phases: BTreeMap<u32, usize>,
    /// The quietest try so far of a phase that is measured again because of other work.
    louder: BTreeMap<u32, Phase>,
    ended: bool,
    /// Since the last phase began a guest has booted, or a notice says that all are booted again.
    again: bool,
}

impl Reading {
    /// Adds a record; an error says why it does not belong there.
    fn add(&mut self, record: Record) -> Result<(), String> {
        if self.ended {
            return Err("a record after the end of the run".into());
        }
        match record {
            Record::Run { .. } => return Err("a second run starts here".into()),
            Record::Guest { vm, variant, info, boot_ms } => {
                if variant.is_some_and(|v| v >= self.run.plan.variants.len()) {
                    return Err("a guest of a variant that is not in the plan".into());
                }
                // Booted again after a VM died: the last boot counts.
                self.again = true;
                self.run.guests.retain(|guest| guest.vm != vm);
                self.run.guests.push(Guest { vm, variant, info, boot_ms });
            }
            Record::Costs { costs } => self.run.costs = Some(costs),
            Record::PhaseStart { phase, variant, repeat, scenario } => {
                self.start(Phase::new(phase, variant, repeat, scenario))?;
            }
            Record::Sample { phase, sample } => match self.phase(phase) {
                Some(p) if !p.is_over() => p.add(sample),
                _ => return Err(format!("a sample outside its phase {phase}")),
            },
            Record::PhaseEnd { phase, result, host } => match self.phase(phase) {
                Some(p) if !p.is_over() => {
                    p.end = Some((result, host));
                    let before = self.louder.remove(&phase);
                    self.keep_quieter(phase, before);
                }
                _ => return Err(format!("phase {phase} ends without a start")),
            },
            Record::PhaseDied { phase, death } => match self.phase(phase) {
                // The guest's messages from before is not of a whole phase.
                Some(p) if !p.is_over() => {
                    let empty = Phase::new(p.id, p.variant, p.repeat, p.scenario);
                    *p = Phase { death: Some(death), ..empty };
                }
                _ => return Err(format!("a guest dies in phase {phase}, which has not begun")),
            },
            Record::Notice { text } => {
                self.again |= text.contains(BOOTED_AGAIN);
                self.run.notices.push(text);
            }
            Record::End { complete, reason } => {
                self.ended = true;
                self.run.complete = complete;
                self.run.reason = reason;
            }
        }
        Ok(())
    }

    fn phase(&mut self, phase: u32) -> Option<&mut Phase> {
        let index = *self.phases.get(&phase)?;
        self.run.phases.get_mut(index)
    }

    fn start(&mut self, new: Phase) -> Result<(), String> {
        let plan = &self.run.plan;
        if new.variant >= plan.variants.len() || new.repeat >= plan.repeat {
            return Err(format!(
                "variant {}, repeat {} is not in the plan ({} variants, {} repeats)",
                new.variant,
                new.repeat,
                plan.variants.len(),
                plan.repeat
            ));
        }
        let again = std::mem::take(&mut self.again);
        let id = new.id;
        match self.phase(id) {
            // A VM or the lab host died in its first try.
            Some(lost) if !lost.is_over() && again => *lost = new,
            Some(loud) if loud.is_loud() => {
                let loud = std::mem::replace(loud, new);
                self.louder.insert(id, loud);
            }
            Some(_) => return Err(format!("phase {id} starts a second time")),
            None => {
                self.phases.insert(id, self.run.phases.len());
                self.run.phases.push(new);
            }
        }
        Ok(())
    }

    /// `before`: an earlier try of `phase`.
    fn keep_quieter(&mut self, phase: u32, before: Option<Phase>) {
        let (Some(before), Some(now)) = (before, self.phase(phase)) else { return };
        let louder = |now: f64| before.other_busy().is_some_and(|before| before < now);
        if !now.is_over() || now.other_busy().is_some_and(louder) {
            *now = before;
        }
    }

    fn finish(mut self) -> Run {
        for (phase, before) in std::mem::take(&mut self.louder) {
            self.keep_quieter(phase, Some(before));
        }
        if !self.ended {
            self.run.complete = false;
            self.run.reason = Some("the record stops before the run's end".into());
        }
        for phase in &mut self.run.phases {
            phase.sort();
        }
        self.run
    }
}

struct Lines<'a> {
    reader: BufReader<File>,
    path: &'a Path,
    number: u64,
    buf: Vec<u8>,
}

impl Lines<'_> {
    fn wrong(&self, message: impl std::fmt::Display) -> Error {
        Error::Format {
            path: self.path.to_path_buf(),
            message: format!("line {}: {message}", self.number),
        }
    }

    /// The next line that is not blank, and whether its end is missing.
    fn read(&mut self) -> Result<Option<bool>> {
        loop {
            self.buf.clear();
            self.number += 1;
            let mut limited = (&mut self.reader).take(LONGEST_LINE);
            let n = limited.read_until(b'\n', &mut self.buf).map_err(Error::io(self.path))?;
            if n == 0 {
                return Ok(None);
            }
            let torn = self.buf.last() != Some(&b'\n');
            if torn && n as u64 == LONGEST_LINE {
                return Err(self.wrong("too long for a record; the file is damaged"));
            }
            if torn || !self.buf.trim_ascii().is_empty() {
                return Ok(Some(torn));
            }
        }
    }

    fn next(&mut self) -> Result<Option<Record>> {
        let Some(torn) = self.read()? else { return Ok(None) };
        match serde_json::from_slice(&self.buf) {
            Ok(record) => Ok(Some(record)),
            Err(_) if torn => Ok(None),
            Err(e) => Err(self.wrong(format!("not a record: {e}"))),
        }
    }

    /// The first record, whose schema decides whether the rest can be understood at all.
    fn first(&mut self, dir: &Path) -> Result<Option<Run>> {
        let Some(torn) = self.read()? else { return Ok(None) };
        let value: serde_json::Value = match serde_json::from_slice(&self.buf) {
            Ok(value) => value,
            Err(_) if torn => return Ok(None),
            Err(e) => return Err(self.wrong(format!("not a record: {e}"))),
        };
        let schema = &value["plan"]["schema"];
        if value["record"] != "run" || !schema.is_u64() {
            return Err(self.wrong("not the start of a run's record; is this the right directory?"));
        }
        if *schema != SCHEMA {
            return Err(self.wrong(format!(
                "written in schema {schema}, this program reads schema {SCHEMA}; use the version that made it"
            )));
        }
        match serde_json::from_value(value) {
            Ok(Record::Run { plan, started, host }) => Ok(Some(Run {
                dir: dir.to_path_buf(),
                plan: *plan,
                started,
                host,
                guests: vec![],
                costs: None,
                phases: vec![],
                notices: vec![],
                complete: false,
                reason: None,
            })),
            Ok(_) => Err(self.wrong("not the start of a run's record")),
            Err(e) => Err(self.wrong(format!("not a record: {e}"))),
        }
    }
}
