//! The conversation and its engine.

use std::time::Duration;

use paceline::{Completion, DraftStatistics, Engine, Event, FinishReason, Request, SamplingOptions, TokenId};
use serde_json::{Value, json};

use crate::chat_prompt::PromptEncoder;
use crate::failure::{Failure, note};
use crate::numbers::counted;
use crate::progress::Progress;
use crate::run::report::{Clock, speed};
use crate::run::stream::drafting_notes;
use crate::sampling::under_own_name;

/// Conversations longer than this show how far they are read.
const LONG_PROMPT: usize = 512;

/// A conversation with a model.
pub(super) struct Session<'a> {
    engine: Engine,
    encoder: PromptEncoder<'a>,
    /// Most tokens of an answer.
    max_tokens: Option<usize>,
    sampling: SamplingOptions,
    messages: Vec<Value>,
    /// Messages that stand before the conversation.
    n_fixed: usize,
    last: Option<Measured>,
}

/// What an answer took.
struct Measured {
    n_prompt: usize,
    /// Tokens of the prompt that an earlier turn had read.
    n_kept: usize,
    n_answer: usize,
    prefill: Duration,
    decode: Duration,
    draft: Option<DraftStatistics>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        engine: Engine,
        encoder: PromptEncoder<'a>,
        system: Option<&str>,
        max_tokens: Option<usize>,
        sampling: SamplingOptions,
    ) -> Self {
        let messages: Vec<Value> =
            system.map(|text| json!({"role": "system", "content": text})).into_iter().collect();
        Self { engine, encoder, max_tokens, sampling, n_fixed: messages.len(), messages, last: None }
    }

    /// Takes a message and hands its answer to `show` as it comes. Where that fails, the message is taken back; an answer
    /// that is `stopped` stays as far as it came.
    pub(super) fn turn(
        &mut self,
        text: &str,
        show: &mut dyn FnMut(&str) -> Result<(), Failure>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        let n_before = self.messages.len();
        self.messages.push(json!({"role": "user", "content": text}));
        let answer = self.answer(show, stopped);
        match answer {
            Ok(answer) if !answer.is_empty() => {
                self.messages.push(json!({"role": "assistant", "content": answer}));
                Ok(())
            }
            // What has no answer is not part of the conversation.
            answer => {
                self.messages.truncate(n_before);
                answer.map(drop)
            }
        }
    }

    /// Forgets the conversation.
    pub(super) fn reset(&mut self) {
        self.messages.truncate(self.n_fixed);
        self.last = None;
    }

    /// Takes back the last message and its answer; false if there is none.
    pub(super) fn undo(&mut self) -> bool {
        if self.messages.len() < self.n_fixed + 2 {
            return false;
        }
        self.messages.truncate(self.messages.len() - 2);
        true
    }

    /// How long the conversation is and how the last answer came, in lines.
    pub(super) fn statistics(&self) -> Vec<String> {
        let n_turns = (self.messages.len() - self.n_fixed) / 2;
        let context = self.engine.sizes().context;
        let turns = counted(n_turns as u64, "turn");
        let mut lines = vec![format!("{turns}, a context of {context} tokens")];
        let Some(last) = &self.last else { return lines };
        let rate = |tokens, time| speed(tokens, time).map_or("-".to_owned(), |speed| format!("{speed:.1}"));
        let n_read = last.n_prompt - last.n_kept;
        lines.push(format!(
            "last turn: {} of the conversation's {} tokens were there, {n_read} were read in {:.0} ms ({} tokens/s)",
            last.n_kept,
            last.n_prompt,
            last.prefill.as_secs_f64() * 1e3,
            rate(n_read, last.prefill)
        ));
        lines.push(format!(
            "last answer: {}, {} tokens/s",
            counted(last.n_answer as u64, "token"),
            rate(last.n_answer.saturating_sub(1), last.decode)
        ));
        if let Some(draft) = &last.draft {
            let (accepted, drafted, per_round) = (draft.accepted, draft.drafted, draft.tokens_per_round());
            lines.push(format!("drafts: {accepted} of {drafted} accepted, {per_round:.2} tokens a round"));
            lines.extend(drafting_notes(draft));
        }
        lines.push(format!("level {}", self.engine.backend_info().level));
        lines
    }

    /// The answer to the conversation.
    fn answer(
        &mut self,
        show: &mut dyn FnMut(&str) -> Result<(), Failure>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<String, Failure> {
        let prompt = self.encoder.encode_messages(&Value::Array(self.messages.clone()))?;
        let n_prompt = prompt.len();
        let (context, model_context) = (self.engine.sizes().context, self.engine.description().max_positions);
        let room = context.saturating_sub(n_prompt);
        if room == 0 {
            // A larger context helps only as far as the model has one, and an answer has at least a token.
            let more = match n_prompt < model_context {
                true => format!("--context gives more, up to the model's {model_context}"),
                false => format!("more than {model_context} the model does not have"),
            };
            return Err(Failure::bad_input(format!(
                "the conversation has {n_prompt} tokens, the context holds {context}; /undo or /reset makes room, and {more}"
            )));
        }
        let max_tokens = self.max_tokens.unwrap_or(room);
        let mut request = Request::new(prompt.into_iter().map(TokenId).collect(), max_tokens);
        request.sampling = self.sampling.clone();
        request.keep_kv = true;
        let n_shared_before = self.engine.status().shared_rows;
        let (completion, clock) = self.generate(request, n_prompt, show, stopped)?;
        let answer = completion.text.unwrap_or_default();
        if !answer.is_empty() && !answer.ends_with('\n') {
            show("\n")?;
        }
        match &completion.finished {
            None => note("stopped"),
            Some(finished) if finished.reason == FinishReason::Length => {
                note("the answer ends here because it may have no more tokens");
            }
            Some(_) if answer.is_empty() => note("the answer is empty"),
            Some(_) => {}
        }
        self.last = Some(Measured {
            n_prompt,
            n_kept: (self.engine.status().shared_rows - n_shared_before) as usize,
            n_answer: completion.token_ids.len(),
            prefill: clock.prefill(),
            decode: clock.decode(),
            draft: completion.finished.and_then(|finished| finished.draft),
        });
        Ok(answer)
    }

    /// Runs a request to its end or until it is stopped.
    fn generate(
        &mut self,
        request: Request,
        n_prompt: usize,
        show: &mut dyn FnMut(&str) -> Result<(), Failure>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Completion, Clock), Failure> {
        let mut progress = (n_prompt > LONG_PROMPT).then(|| Progress::new("reading", n_prompt));
        let id = self.engine.submit(request).map_err(|why| Failure::bad_input(under_own_name(why)))?;
        let (mut completion, mut clock) = (Completion::default(), Clock::start());
        let mut events = Vec::new();
        while completion.finished.is_none() && !stopped() {
            self.engine.step(&mut events).map_err(Failure::failed)?;
            for (_, event) in events.drain(..) {
                match &event {
                    Event::Prefill { done, .. } => progress.iter().for_each(|progress| progress.set(*done)),
                    Event::Token { text, .. } => {
                        clock.token();
                        progress.take().iter().for_each(Progress::clear);
                        if let Some(text) = text.as_deref().filter(|text| !text.is_empty())
                            && let Err(failure) = show(text)
                        {
                            self.engine.cancel(id);
                            return Err(failure);
                        }
                    }
                    _ => {}
                }
                completion.add(event).map_err(Failure::failed)?;
            }
        }
        progress.iter().for_each(Progress::clear);
        self.engine.cancel(id);
        Ok((completion, clock))
    }
}

#[cfg(all(test, feature = "tiny"))]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use paceline::{Activation, Inexact, Isa, LoadOptions, Sizes, Tokenizer};
    use paceline_checkpoint::ModelFolder;

    use super::*;
    use crate::builtin;

    struct Setup {
        folder: ModelFolder,
        tokenizer: Arc<Tokenizer>,
    }

    impl Setup {
        fn new() -> Self {
            let folder = builtin::tiny().unwrap();
            let tokenizer = Arc::new(folder.tokenizer().unwrap().unwrap());
            Self { folder, tokenizer }
        }

        fn session(&self, context: usize, max_tokens: usize) -> Session<'_> {
            let options = LoadOptions {
                isa: Isa::best().0,
                threads: 1,
                activation: Activation::Bf16,
                sizes: Sizes::single(context),
                inexact: Inexact::Refuse,
                draft: None,
                tokenizer: Some(Arc::clone(&self.tokenizer)),
                progress: &mut |_, _| {},
            };
            let engine = paceline::load(&self.folder, options).unwrap();
            let encoder = PromptEncoder::for_conversation(&self.folder, &self.tokenizer).unwrap();
            Session::new(engine, encoder, None, Some(max_tokens), SamplingOptions::default())
        }
    }

    fn turn(session: &mut Session<'_>, text: &str) -> String {
        let mut shown = String::new();
        let show = &mut |text: &str| {
            shown.push_str(text);
            Ok(())
        };
        session.turn(text, show, &|| false).unwrap();
        shown
    }

    #[test]
    fn a_turn_sees_those_before_it_until_they_are_taken_back() {
        let setup = Setup::new();
        let mut session = setup.session(512, 24);
        assert!(!session.undo());
        let first = turn(&mut session, "What is the capital of France?");
        assert!(first.contains("Paris"), "{first}");
        let prompt_of = |session: &Session<'_>| session.last.as_ref().map(|last| last.n_prompt);
        let alone = prompt_of(&session).unwrap();
        turn(&mut session, "Tell me a short story about a fox.");
        assert!(prompt_of(&session).unwrap() > alone);
        assert!(session.undo() && session.undo() && !session.undo());
        assert_eq!(turn(&mut session, "What is the capital of France?"), first);
        assert_eq!(prompt_of(&session), Some(alone));
        session.reset();
        assert_eq!(turn(&mut session, "What is the capital of France?"), first);
        assert!(session.statistics()[0].starts_with("1 turn,"), "{:?}", session.statistics());
    }

    #[test]
    fn what_a_turn_has_read_is_not_read_again() {
        let setup = Setup::new();
        let mut session = setup.session(512, 24);
        let questions = ["What is the capital of France?", "Tell me a short story about a fox.", "And then?"];
        let mut answers = Vec::new();
        let mut read = 0;
        for question in questions {
            answers.push(turn(&mut session, question));
            let last = session.last.as_ref().unwrap();
            assert_eq!(last.n_kept, read, "{question}");
            // The newest token of an answer was never read.
            read = last.n_prompt + last.n_answer - 1;
        }
        // Taken back, the conversation is there as far as it is the same.
        session.undo();
        let n_prompt = session.last.as_ref().unwrap().n_prompt;
        assert_eq!(turn(&mut session, questions[2]), answers[2]);
        assert_eq!(session.last.as_ref().unwrap().n_kept, n_prompt - 1);
        // Who reads everything says the same.
        let mut other = setup.session(512, 24);
        for (question, answer) in questions.iter().zip(&answers) {
            let engine = setup.session(512, 24).engine;
            other.engine = engine;
            assert_eq!(turn(&mut other, question), *answer);
            assert_eq!(other.last.as_ref().unwrap().n_kept, 0);
        }
    }

    #[test]
    fn a_stopped_answer_stays_as_far_as_it_came() {
        let setup = Setup::new();
        let mut session = setup.session(512, 24);
        let n_shown = Cell::new(0);
        let mut shown = String::new();
        let show = &mut |text: &str| {
            n_shown.set(n_shown.get() + 1);
            shown.push_str(text);
            Ok(())
        };
        session.turn("Tell me a short story about a fox.", show, &|| n_shown.get() == 3).unwrap();
        assert_eq!(session.messages.len(), 2);
        assert_eq!(session.messages[1]["content"], shown.trim_end());
        // Before the first token there is nothing to keep.
        session.turn("And then?", &mut |_| Ok(()), &|| true).unwrap();
        assert_eq!(session.messages.len(), 2);
        assert!(session.engine.is_idle());
        turn(&mut session, "What is the capital of France?");
    }

    #[test]
    fn a_full_context_is_said_and_the_conversation_stays() {
        let setup = Setup::new();
        let mut session = setup.session(48, 24);
        let long = "word ".repeat(60);
        let Err(Failure::BadInput(message)) = session.turn(&long, &mut |_| Ok(()), &|| false) else {
            panic!("it is accepted");
        };
        assert!(message.contains("the context holds 48") && message.contains("/reset"), "{message}");
        assert!(message.ends_with("and --context gives more, up to the model's 2048"), "{message}");
        let Err(Failure::BadInput(message)) = session.turn(&"word ".repeat(2100), &mut |_| Ok(()), &|| false)
        else {
            panic!("it is accepted");
        };
        assert!(message.ends_with("and more than 2048 the model does not have"), "{message}");
        assert!(session.messages.is_empty());
        turn(&mut session, "Hello");
    }

    #[test]
    fn who_cannot_be_shown_anything_gets_no_answer() {
        let setup = Setup::new();
        let mut session = setup.session(512, 24);
        let failed = session.turn("Hello", &mut |_| Err(Failure::ReaderGone), &|| false);
        assert!(matches!(failed, Err(Failure::ReaderGone)));
        assert!(session.messages.is_empty() && session.engine.is_idle());
    }
}
