//! Servers of the tiny model.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use paceline::drafters::{AssistantConventions, DraftBlock};
use paceline::{
    Activation, BuildError, DraftOptions, DraftSource, Engine, EngineStatus, Inexact, Isa, LoadOptions,
    ModelFolder, Sizes, Tokenizer,
};
use paceline_server::{Model, Server, Settings};
use paceline_testkit::paths::asset;
use serde_json::{Value, json};

use crate::client::{Answer, get, post};
use crate::gate::{Gate, Held};

/// How a server of the tiny model is made.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) context: usize,
    pub(crate) slots: usize,
    /// Drafts of an assistant, which has a number of its own; `None` leaves predictions alone.
    pub(crate) drafts: Option<Option<usize>>,
    pub(crate) kv_memory: Option<u64>,
    pub(crate) settings: Settings,
    /// Holds the engine.
    pub(crate) held: Option<Held>,
}

impl Default for Setup {
    fn default() -> Self {
        let settings = Settings { queue: 200, ..Settings::default() };
        Self { context: 512, slots: 8, drafts: Some(Some(4)), kv_memory: None, settings, held: None }
    }
}

/// A running server.
pub(crate) struct Running {
    server: Option<Server>,
    pub(crate) address: SocketAddr,
    gate: Option<&'static Gate>,
}

impl Setup {
    fn engine(&self, folder: &ModelFolder, tokenizer: &Arc<Tokenizer>) -> Engine {
        let assistant = ModelFolder::open(&asset("tiny-gemma4-assistant")).unwrap();
        let own = self.drafts.map(|_| DraftSource::Checkpoint(&assistant));
        let draft = Some(DraftOptions {
            sources: [DraftSource::Prediction].into_iter().chain(own).collect(),
            tokens_per_round: self.drafts.flatten(),
            confidence: 0.0,
            assistant: AssistantConventions::default(),
            block: DraftBlock::default(),
        });
        let options = LoadOptions {
            isa: Isa::best().0,
            threads: 1,
            activation: Activation::Bf16,
            sizes: Sizes {
                n_slots: self.slots,
                prefill_rows: 64,
                score_prompts: true,
                kv_memory: self.kv_memory,
                ..Sizes::single(self.context)
            },
            inexact: Inexact::Refuse,
            draft,
            tokenizer: Some(Arc::clone(tokenizer)),
            progress: &mut |_, _| {},
        };
        let mut engine = paceline::load(folder, options).unwrap();
        if let Some(held) = self.held {
            engine.set_clock(held.clock);
        }
        engine
    }

    /// Bytes of K/V that one sequence at full context needs.
    pub(crate) fn least_memory(&self) -> u64 {
        let folder = ModelFolder::open(&asset("tiny-gemma4")).unwrap();
        let description = paceline_models::describe(folder.config()).unwrap();
        let sizes = Sizes { kv_memory: Some(1), ..Sizes::single(self.context) };
        match sizes.limits(&description, &[], Activation::Bf16) {
            Err(BuildError::KvMemory { needed, .. }) => needed,
            other => panic!("one byte is enough: {other:?}"),
        }
    }

    /// A server that has no model yet.
    pub(crate) fn listen(&self) -> Running {
        let server = Server::start("127.0.0.1", 0, self.settings.clone()).unwrap();
        Running { address: server.address(), server: Some(server), gate: self.held.map(|held| held.gate) }
    }

    /// The model for it.
    pub(crate) fn model(&self) -> Model {
        let folder = ModelFolder::open(&asset("tiny-gemma4")).unwrap();
        let tokenizer = Arc::new(folder.tokenizer().unwrap().unwrap());
        let engine = self.engine(&folder, &tokenizer);
        Model::new("tiny-gemma4".to_owned(), &folder, tokenizer, engine).unwrap()
    }

    pub(crate) fn start(&self) -> Running {
        let running = self.listen();
        running.publish(self.model());
        running
    }
}

impl Running {
    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs until it is stopped")
    }

    pub(crate) fn publish(&self, model: Model) {
        self.server().publish(model);
    }

    pub(crate) fn status(&self) -> EngineStatus {
        self.server().status().expect("a model is there")
    }

    pub(crate) fn stop(mut self, drain: Duration) {
        self.server.take().expect("it runs").stop(drain);
    }

    /// What holds the engine.
    pub(crate) fn gate(&self) -> &'static Gate {
        self.gate.expect("a setup that is held")
    }

    /// Places that somebody has. One is taken before the engine knows of an output, and given back when the server is done with it.
    pub(crate) fn taken(&self) -> f64 {
        self.metric("paceline:places") - self.metric("paceline:free_places")
    }

    pub(crate) fn chat(&self, body: &Value) -> Answer {
        post(self.address, "/v1/chat/completions", body)
    }

    pub(crate) fn complete(&self, body: &Value) -> Answer {
        post(self.address, "/v1/completions", body)
    }

    /// The value of a figure without labels of its own.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = get(self.address, "/metrics");
        let start = format!("{name}{{model_name=\"tiny-gemma4\"}} ");
        let value = page.text().lines().find_map(|line| line.strip_prefix(&start));
        value.unwrap_or_else(|| panic!("no {name} in {}", page.text())).parse().unwrap()
    }

    /// Waits until nothing is asked of the server and the engine has given everything back. What a client sent before has to be known
    /// to have arrived, or this may look too early.
    pub(crate) fn settles(&self, before: &EngineStatus) {
        let left = || {
            // Places first: one is taken before the engine knows of an output, and given back before it is out of the engine.
            let taken = self.taken();
            let status = self.status();
            (taken, status.running, status.waiting, status.free_slots, status.kv_blocks)
        };
        let nothing = (0.0, 0, 0, before.free_slots, before.kv_blocks.clone());
        wait_until("the server settles", left, |left| *left == nothing);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(gate) = self.gate {
            gate.open();
        }
        if let Some(server) = self.server.take() {
            server.stop(Duration::ZERO);
        }
    }
}

/// Waits for something that other threads bring about: until what `look` sees is `enough`. Counts its looks and not the time, so
/// that it waits longer where it gets little of the machine.
pub(crate) fn wait_until<T: Debug>(what: &str, look: impl Fn() -> T, enough: impl Fn(&T) -> bool) {
    let mut seen = look();
    for _ in 0..60_000 {
        if enough(&seen) {
            return;
        }
        thread::sleep(Duration::from_millis(1));
        seen = look();
    }
    panic!("not within a minute: {what}; the last look saw {seen:?}");
}

/// A server for tests that leave it as it was.
pub(crate) fn shared() -> &'static Running {
    static SHARED: OnceLock<Running> = OnceLock::new();
    SHARED.get_or_init(|| Setup::default().start())
}

/// One message of a user.
pub(crate) fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// Numbers that are the same in each run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % n
    }

    pub(crate) fn one_of<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}
