//! One round: draft, verify, choose, commit. Read this first.
//!
//! ```text
//! tokens of a slot   t[0] .......... t[len-1] | t[len]  | d1 .. dk
//!                    K/V committed            | anchor  | drafts
//!
//! draft    the drafter puts k drafts behind the anchor (k differs by slot and round; 0 is plain decoding)
//! verify   the target runs rows t[len], d1 .. dk at positions len .. len + k
//! choose   at each of these rows the target chooses its own token: c0 .. ck
//! commit   the first a drafts that equal c0 .. c(a-1) are accepted; c0 .. ca are emitted; len += a + 1; ca is the anchor
//! ```
//! The emitted tokens are the target's choices and never the drafter's, and a row's bits do not depend on the rows around it:
//! so the text is that of plain decoding. Rejected rows lie beyond `len`, where nobody looks, until they are rewritten.
//!
//! There is one path. A prompt is read by the same pass over known tokens, in chunks; a chunk that is not the last chooses
//! nothing, the last one chooses the first token. Sequences in all these states share a pass.
//!
//! Nothing here reads a value from the backend: counts go in, and what happened is told by `collect` afterwards.

use std::time::Duration;

use paceline_backend::{Backend, Op, Pass, RowSet, Rows, SlotId, Timed};
use paceline_models::Target;

use crate::drafters::{DraftError, DraftSlot, Drafter, SettledSlot};
use crate::statistics::RoundTimes;

/// One slot's part of a round.
#[derive(Debug)]
pub(crate) struct RoundSlot {
    /// The slot.
    pub(crate) slot: SlotId,
    /// Known tokens: the anchor, or a chunk of the prompt.
    pub(crate) n_known: usize,
    /// The last known token is the newest there is, so the target chooses what follows.
    pub(crate) chooses: bool,
    /// Log-probabilities of its known rows are asked for.
    pub(crate) scored: bool,
    /// A drafter keeps state for it.
    pub(crate) drafted: bool,
    /// Drafts: how many are wanted before the round, how many rows its pass had for them after it.
    pub(crate) n_drafts: usize,
    /// Rows behind the last known token for which there are K/V blocks: at least as many as drafts.
    pub(crate) room: usize,
    /// The request leaves the number of drafts to the drafter.
    pub(crate) open_ended: bool,
    /// Set by the round: which of the drafter's sources the drafts are from.
    pub(crate) source: usize,
    /// Set by the round: sources that can not draft for the slot any more, and why.
    pub(crate) failures: Vec<(usize, DraftError)>,
}

/// What takes part in every round.
pub(crate) struct Players<'a> {
    /// Holds all values.
    pub(crate) backend: &'a mut dyn Backend,
    /// Decides the text.
    pub(crate) target: &'a dyn Target,
    /// Proposes.
    pub(crate) drafter: Option<&'a mut (dyn Drafter + 'static)>,
    /// Measures, if somebody wants to know.
    pub(crate) clock: Option<fn() -> Duration>,
}

/// Runs one round over `slots`. Takes the last pass to reuse its memory and returns the new one, with the times of all but the
/// host's part.
pub(crate) fn run(players: &mut Players<'_>, slots: &mut [RoundSlot], last: Pass) -> (Pass, RoundTimes) {
    let mut times = RoundTimes::default();
    let mut lap = Lap::new(players.clock);
    draft(players, slots);
    let Players { backend, target, drafter, clock } = players;
    if let Some(drafter) = drafter {
        let settled = |part: &RoundSlot| SettledSlot {
            slot: part.slot,
            n_known: part.n_known,
            n_drafts: part.n_drafts,
        };
        drafter.settled(*backend, &slots.iter().map(settled).collect::<Vec<_>>());
    }
    times.draft = lap.end();
    let reads_taps = drafter.as_ref().is_some_and(|drafter| drafter.reads_taps());

    let mut pass = last.rebuild();
    for part in slots.iter() {
        let taps = reads_taps && part.drafted;
        if part.scored {
            pass.scored(part.slot, part.n_known, part.chooses, taps);
        } else {
            pass.target(part.slot, part.n_known, part.n_drafts, part.chooses, taps);
        }
    }
    let pass = pass.build();

    backend.begin(&pass);
    let choosing = forward(*backend, *target, &pass, *clock); // verify and choose
    times.verify = lap.end().saturating_sub(choosing);
    if let Some(drafter) = drafter {
        drafter.verified(*backend, &pass);
        times.draft += lap.end();
    }
    backend.run(&Op::Commit, Rows { set: RowSet::All, start: 0, len: 0 });
    target.committed(*backend);
    times.choose = choosing + lap.end();
    if let Some(drafter) = drafter {
        drafter.committed(*backend, &pass);
        times.draft += lap.end();
    }
    (pass, times)
}

/// The target's forward, and how much of its time went into choosing.
fn forward(
    backend: &mut dyn Backend,
    target: &dyn Target,
    pass: &Pass,
    clock: Option<fn() -> Duration>,
) -> Duration {
    let Some(clock) = clock else {
        target.forward(backend, pass);
        return Duration::ZERO;
    };
    let mut timed = Timed::new(backend, clock);
    target.forward(&mut timed, pass);
    timed.choosing()
}

/// Time from one end to the next; none without a clock.
pub(crate) struct Lap {
    clock: Option<fn() -> Duration>,
    start: Duration,
}

impl Lap {
    pub(crate) fn new(clock: Option<fn() -> Duration>) -> Self {
        Self { clock, start: clock.map_or(Duration::ZERO, |clock| clock()) }
    }

    pub(crate) fn end(&mut self) -> Duration {
        let Some(clock) = self.clock else { return Duration::ZERO };
        let now = clock();
        let lap = now.saturating_sub(self.start);
        self.start = now;
        lap
    }
}

/// Lets the drafter propose for the slots that want drafts, and sets their number of drafts to what there is.
fn draft(players: &mut Players<'_>, slots: &mut [RoundSlot]) {
    let Some(drafter) = &mut players.drafter else { return };
    let wanting = slots.iter().filter(|part| part.n_drafts > 0);
    let mut proposals: Vec<_> =
        wanting.map(|part| DraftSlot::new(part.slot, part.n_drafts, part.room, part.open_ended)).collect();
    if proposals.is_empty() {
        return;
    }
    if let Err(error) = drafter.draft(players.backend, &mut proposals) {
        proposals.iter_mut().for_each(|proposal| proposal.fail(error.clone()));
    }
    let vocab_size = players.target.description().vocab_size;
    for (part, proposal) in slots.iter_mut().filter(|part| part.n_drafts > 0).zip(proposals) {
        let settled = proposal.settle(players.backend, vocab_size);
        part.n_drafts = settled.n_drafts;
        (part.source, part.failures) = (settled.source, settled.failures);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use paceline_backend::{Activation, Door, KvBlockId, Record, Recorder, SlotInit, TokenId};
    use paceline_testkit::{ToyBackend, ToyModel, ToyTarget};

    use super::*;
    use crate::sizes::Sizes;

    /// Proposes one token, and notes when it is called.
    struct Listening(Arc<Mutex<Vec<&'static str>>>);

    impl Drafter for Listening {
        fn kind(&self) -> &'static str {
            "listening"
        }
        fn suggested_drafts(&self) -> usize {
            1
        }
        fn draft(&mut self, _: &mut dyn Backend, slots: &mut [DraftSlot]) -> Result<(), DraftError> {
            self.0.lock().unwrap().push("draft");
            slots.iter_mut().for_each(|slot| slot.propose(&[TokenId(5)]));
            Ok(())
        }
        fn settled(&mut self, _: &mut dyn Backend, parts: &[SettledSlot]) {
            let part = |slot, n_known, n_drafts| SettledSlot { slot: SlotId(slot), n_known, n_drafts };
            assert_eq!(parts, [part(0, 1, 1), part(1, 2, 0)]);
            self.0.lock().unwrap().push("settled");
        }
        fn verified(&mut self, _: &mut dyn Backend, pass: &Pass) {
            assert_eq!(pass.rows().len(), 4);
            self.0.lock().unwrap().push("verified");
        }
        fn committed(&mut self, _: &mut dyn Backend, _: &Pass) {
            self.0.lock().unwrap().push("committed");
        }
    }

    #[test]
    fn a_round_is_one_pass_and_reads_no_value() {
        let model = ToyModel::default();
        let sizes = Sizes { n_slots: 2, max_drafts: 2, ..Sizes::single(64) };
        let limits = sizes.limits(&ToyTarget::description_of(&model), &[], Activation::F32).unwrap();
        let mut backend = Recorder::new(ToyBackend::new(&model));
        let target = ToyTarget::load(&model, &mut backend, &limits).unwrap();
        backend.reserve(2, 64, limits.max_rows).unwrap();
        let init = |n| SlotInit::greedy(model.prompt(n, 1), 64);
        for slot in 0..2 {
            backend.open(SlotId(slot), init(1 + slot as usize));
            let put = |&group| backend.put_blocks(SlotId(slot), group, 0, &[KvBlockId(slot)]);
            target.kv_groups().iter().for_each(put);
        }
        let calls = Arc::default();
        let drafter: &mut (dyn Drafter + 'static) = &mut Listening(Arc::clone(&calls));
        let part = |slot, n_known, n_drafts| RoundSlot {
            slot: SlotId(slot),
            n_known,
            chooses: true,
            scored: false,
            drafted: true,
            n_drafts,
            room: n_drafts,
            open_ended: false,
            source: 0,
            failures: Vec::new(),
        };
        let mut slots = [part(0, 1, 2), part(1, 2, 0)];
        let players =
            &mut Players { backend: &mut backend, target: &target, drafter: Some(drafter), clock: None };
        run(players, &mut slots, Pass::default());

        assert_eq!(slots.map(|part| part.n_drafts), [1, 0]);
        assert_eq!(*calls.lock().unwrap(), ["draft", "settled", "verified", "committed"]);
        let records = backend.take();
        let position = |wanted: &dyn Fn(&Record) -> bool| records.iter().position(wanted);
        assert_eq!(position(&|record| *record == Record::Door(Door::PutDrafts)), Some(0));
        assert_eq!(records[1], Record::Begin { rows: 4, wanted: 3 });
        assert_eq!(
            position(&|record| matches!(record, Record::Run { op: Op::Commit, .. })),
            Some(records.len() - 1)
        );
        assert_eq!(position(&|record| *record == Record::Door(Door::Collect)), None);
    }
}
