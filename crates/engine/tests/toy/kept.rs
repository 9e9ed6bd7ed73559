//! K/V that a request leaves to the next one: the turns of a conversation, and what comes between them.

use paceline::{Completion, Engine, Event, LogprobOptions, Request, Sizes, TokenId};
use paceline_backend::Distribution;
use paceline_testkit::{Nasty, ToyDrafter, ToyLayer, ToyModel};

use crate::harness::{Case, nasty, plain, sizes};

/// A conversation on one engine. Every turn must have the text of reading everything.
struct Talk {
    case: Case,
    engine: Engine,
    /// All tokens so far.
    tokens: Vec<TokenId>,
    shared: u64,
}

impl Talk {
    fn new(model: &ToyModel, chunk: usize, drafter: ToyDrafter) -> Self {
        let sizes = Sizes { keep_prompts: true, ..sizes(600, 2, chunk, 7) };
        let case = Case::new(model, sizes, drafter, vec![]);
        let engine = case.engine();
        Self { tokens: model.prompt(40, 0), engine, case, shared: 0 }
    }

    fn request(&self, n: usize) -> Request {
        let mut request = Request::new(self.tokens.clone(), n);
        request.keep_kv = true;
        request.ignore_eos = true;
        request
    }

    /// Steps until nothing is left to do, or up to `steps` times.
    fn run(&mut self, steps: usize) -> Completion {
        let (mut completion, mut events) = (Completion::default(), Vec::new());
        for _ in 0..steps {
            if self.engine.is_idle() {
                break;
            }
            self.engine.step(&mut events).unwrap();
            self.engine.check_integrity().unwrap();
            events.drain(..).for_each(|(_, event)| completion.add(event).unwrap());
        }
        completion
    }

    /// Rows that the requests since the last call did not compute.
    fn newly_shared(&mut self) -> usize {
        let before = std::mem::replace(&mut self.shared, self.engine.status().shared_rows);
        (self.shared - before) as usize
    }

    /// A turn of `n` tokens, and `more` tokens of the next question behind its answer. Returns how many tokens were not read again.
    fn turn(&mut self, n: usize, more: usize) -> usize {
        let request = self.request(n);
        let expected = plain(&self.case, &request).token_ids;
        self.engine.submit(request).unwrap();
        let completion = self.run(10_000);
        assert_eq!(completion.token_ids, expected);
        self.tokens.extend(expected);
        let seed = self.tokens.len() as u64;
        self.tokens.extend(self.case.model.prompt(more, seed));
        self.newly_shared()
    }
}

/// Layers with and without a window that a conversation outgrows, in two orders.
fn models() -> [ToyModel; 2] {
    let windows = vec![
        ToyLayer::Owns { window: Some(70) },
        ToyLayer::Owns { window: None },
        ToyLayer::Shares { layer: 0 },
    ];
    [ToyModel::default(), ToyModel { layers: windows, ..ToyModel::default() }]
}

fn drafters() -> Vec<ToyDrafter> {
    vec![
        ToyDrafter::None,
        nasty(Nasty::RightThenWrong),
        ToyDrafter::Assistant,
        ToyDrafter::OwnKv(vec![None, Some(20)]),
        ToyDrafter::Ngram,
        ToyDrafter::Chain(vec![ToyDrafter::Ngram, ToyDrafter::OwnKv(vec![Some(20)])]),
    ]
}

#[test]
fn turns_read_what_is_new_and_say_the_same() {
    for model in models() {
        for drafter in drafters() {
            for chunk in [1, 16, 512] {
                let mut talk = Talk::new(&model, chunk, drafter.clone());
                let mut read = 0;
                for (n, more) in [(30, 5), (1, 1), (64, 40), (90, 3), (20, 100), (7, 0)] {
                    let len = talk.tokens.len();
                    assert_eq!(talk.turn(n, more), read, "{drafter:?}, chunk {chunk}, turn of {n} at {len}");
                    // The newest token was never read, and at least one has to be.
                    read = len + n - 1;
                }
                assert_eq!(talk.turn(10, 0), read, "nothing new but the newest token");
            }
        }
    }
}

#[test]
fn a_turn_taken_back_is_shared_as_far_as_its_beginning() {
    let layers = vec![ToyLayer::Owns { window: None }, ToyLayer::Shares { layer: 0 }];
    let mut talk = Talk::new(&ToyModel { layers, ..ToyModel::default() }, 16, ToyDrafter::Ngram);
    talk.turn(30, 5);
    let first = talk.tokens.clone();
    talk.turn(80, 9);
    talk.tokens = first.clone();
    // All of it is known, but the last token is read for what follows it.
    assert_eq!(talk.turn(80, 9), first.len() - 1);
    talk.tokens = first[..17].to_vec();
    talk.tokens.extend(talk.case.model.prompt(60, 99));
    let same = first.iter().zip(&talk.tokens).take_while(|(a, b)| a == b).count();
    assert_eq!(talk.turn(5, 5), same);
    talk.tokens = talk.case.model.prompt(50, 7);
    let other = talk.tokens[0] == first[0];
    assert_eq!(talk.turn(5, 5) > 0, other, "another conversation");
}

#[test]
fn what_a_window_gave_back_is_read_again() {
    let [_, model] = models();
    for (back, shared) in [(3, true), (200, false)] {
        let mut talk = Talk::new(&model, 64, ToyDrafter::OwnKv(vec![Some(20)]));
        talk.turn(300, 0);
        let len = talk.tokens.len() - back;
        talk.tokens.truncate(len);
        talk.tokens.push(TokenId(3));
        talk.tokens.push(TokenId(3));
        let found = talk.turn(20, 4);
        assert_eq!(found > 0, shared, "{back} back: {found} of {len} shared");
        assert!(talk.turn(20, 4) > len, "the next turn goes on as ever");
    }
}

#[test]
fn a_prompt_is_shared_where_its_answer_is_repeated_in_other_words() {
    let [_, model] = models();
    for drafter in drafters() {
        for chunk in [5, 64, 512] {
            let mut talk = Talk::new(&model, chunk, drafter.clone());
            let mut shared = 0;
            for (n, more) in [(200, 30), (90, 3), (80, 70), (30, 2)] {
                let n_prompt = talk.tokens.len();
                assert_eq!(
                    talk.turn(n, more),
                    shared,
                    "{drafter:?}, chunk {chunk}, turn of {n} at {n_prompt}"
                );
                // The opening of the answer is left out when it is repeated.
                talk.tokens.drain(n_prompt - 4..n_prompt);
                shared = (n_prompt - 16) / 64 * 64;
            }
        }
    }
}

#[test]
fn a_prompt_is_held_only_while_nobody_needs_its_blocks() {
    let [_, model] = models();
    // No room is made for prompts, so what they hold is missing.
    let case = Case::new(&model, sizes(600, 4, 16, 0), ToyDrafter::None, vec![]);
    let course = |keep: bool| {
        let mut talk =
            Talk { tokens: model.prompt(200, 0), engine: case.engine(), case: case.clone(), shared: 0 };
        let mut request = talk.request(300);
        request.keep_kv = keep;
        let expected = plain(&talk.case, &request).token_ids;
        let submit = |_| talk.engine.submit(request.clone()).unwrap();
        let ids: Vec<_> = (0..8).map(submit).collect();
        let (mut events, mut texts, mut most) = (Vec::new(), vec![Completion::default(); ids.len()], 0);
        while !talk.engine.is_idle() {
            talk.engine.step(&mut events).unwrap();
            talk.engine.check_integrity().unwrap();
            most = most.max(talk.engine.n_requests().0);
            for (id, event) in events.drain(..) {
                texts[ids.iter().position(|other| *other == id).unwrap()].add(event).unwrap();
            }
        }
        assert!(texts.iter().all(|text| text.token_ids == expected));
        let status = talk.engine.status();
        (most, status.rounds, status.preemptions)
    };
    let without = course(false);
    assert!(without.0 >= 3, "{without:?}");
    assert_eq!(course(true), without, "most at a time, rounds and preemptions");
}

#[test]
fn an_answer_that_was_cancelled_counts_as_far_as_it_came() {
    for drafter in drafters() {
        let mut talk = Talk::new(&ToyModel::default(), 16, drafter.clone());
        for steps in [1, 2, 3, 9, 20] {
            let request = talk.request(100);
            let id = talk.engine.submit(request).unwrap();
            let came = talk.run(steps);
            talk.engine.cancel(id);
            talk.engine.check_integrity().unwrap();
            talk.newly_shared();
            let read = talk.tokens.len() + came.token_ids.len().saturating_sub(1);
            talk.tokens.extend(came.token_ids.clone());
            talk.tokens.extend(talk.case.model.prompt(3, 8));
            let shared = talk.turn(10, 3);
            match came.token_ids.len() {
                0 => assert!(shared <= read, "{drafter:?}: {shared} of {read} while the prompt is read"),
                _ => assert_eq!(shared, read, "{drafter:?}"),
            }
        }
    }
}

#[test]
fn others_come_first() {
    let model = ToyModel::default();
    let other = |talk: &Talk| {
        let mut request = Request::new(talk.tokens.clone(), 9);
        request.ignore_eos = true;
        request
    };
    // Two at once share nothing, and what was left is free again.
    let mut talk = Talk::new(&model, 16, ToyDrafter::None);
    talk.turn(30, 5);
    let requests = [other(&talk), talk.request(9)];
    for request in requests {
        talk.engine.submit(request).unwrap();
    }
    talk.run(10_000);
    assert_eq!(talk.newly_shared(), 0);
    // Who came alone leaves nothing unless it was asked to.
    let request = other(&talk);
    talk.engine.submit(request).unwrap();
    talk.run(10_000);
    assert!(talk.newly_shared() > 0);
    assert_eq!(talk.turn(5, 5), 0);
    // A request that is preempted behind its beginning reads everything anew.
    let request = talk.request(9);
    let expected = plain(&talk.case, &request).token_ids;
    let id = talk.engine.submit(request).unwrap();
    let mut came = talk.run(2).token_ids;
    assert!(talk.engine.preempt(id));
    came.extend(talk.run(10_000).token_ids);
    assert_eq!(came, expected);
}

#[test]
fn rows_that_somebody_wants_are_computed() {
    let model = ToyModel::default();
    let case = Case::new(&model, sizes(600, 2, 16, 0), ToyDrafter::None, vec![]);
    let mut sizes = case.sizes;
    sizes.score_prompts = true;
    let case = Case { sizes, ..case };
    let mut talk = Talk { tokens: model.prompt(40, 0), engine: case.engine(), case, shared: 0 };
    talk.turn(30, 5);
    let mut request = talk.request(5);
    request.logprobs = Some(LogprobOptions { top: 0, of: Distribution::Model, prompt: true });
    talk.engine.submit(request).unwrap();
    assert_eq!(talk.run(10_000).prompt_logprobs.len(), talk.tokens.len() - 1);
    assert_eq!(talk.newly_shared(), 0);
}

#[test]
fn recurrent_layers_have_more_than_k_and_v() {
    let layers = vec![ToyLayer::Recurrent, ToyLayer::Owns { window: None }];
    let mut talk = Talk::new(&ToyModel { layers, ..ToyModel::default() }, 16, ToyDrafter::None);
    talk.turn(30, 5);
    assert_eq!(talk.turn(30, 5), 0);
}

#[test]
fn a_drafter_that_gave_up_left_no_k_and_v_of_its_own() {
    let chain = ToyDrafter::Chain(vec![nasty(Nasty::FailingSlots), ToyDrafter::OwnKv(vec![None])]);
    for (drafter, shares) in [(chain, false), (nasty(Nasty::FailingSlots), true)] {
        let mut talk = Talk::new(&ToyModel::default(), 16, drafter.clone());
        talk.turn(60, 5);
        assert_eq!(talk.turn(30, 5) > 0, shares, "{drafter:?}");
    }
}

#[test]
fn a_failed_request_leaves_nothing() {
    let overflows = Some(TokenId(9));
    let model = ToyModel { overflows, ..ToyModel::default() };
    let mut talk = Talk::new(&model, 16, ToyDrafter::None);
    talk.tokens =
        talk.tokens.iter().map(|&token| if token == TokenId(9) { TokenId(8) } else { token }).collect();
    let good = talk.tokens.clone();
    talk.tokens.push(TokenId(9));
    let request = talk.request(5);
    talk.engine.submit(request).unwrap();
    let mut events = Vec::new();
    while !talk.engine.is_idle() {
        talk.engine.step(&mut events).unwrap();
    }
    assert!(events.iter().any(|(_, event)| matches!(event, Event::Failed(_))), "{events:?}");
    talk.tokens = good;
    let request = talk.request(1);
    talk.engine.submit(request).unwrap();
    talk.run(10_000);
    assert_eq!(talk.newly_shared(), 0);
}
