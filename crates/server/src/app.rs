//! What all requests share: settings, the model once it is loaded, metrics, and whether the server is about to end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::model::{Model, Places};
use crate::settings::Settings;

/// Most names of unknown fields that are remembered so as not to be told twice.
const MAX_UNKNOWN: usize = 100;

/// State of a server.
pub(crate) struct App {
    pub(crate) settings: Settings,
    /// Shared with the engine's thread, which must not own the engine by what it counts in.
    pub(crate) metrics: Arc<Metrics>,
    served: OnceLock<Served>,
    ending: AtomicBool,
    /// The engine has stopped by itself.
    pub(crate) broken: Notify,
    unknown_fields: Mutex<Vec<String>>,
}

/// A model and the places in front of it.
pub(crate) struct Served {
    pub(crate) model: Arc<Model>,
    places: Places,
}

impl Served {
    /// Takes places for `n` outputs.
    pub(crate) fn places(&self, n: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let all = self.places.all;
        if n > all {
            let problem = format!("asks for {n} outputs; this server has places for {all} at one time");
            return Err(ApiError::field("n", problem));
        }
        let wanted = u32::try_from(n).expect("outputs are few");
        let free = Arc::clone(&self.places.free);
        free.try_acquire_many_owned(wanted).map_err(|_| ApiError::overloaded(all))
    }

    /// Places that nobody has, and all of them.
    pub(crate) fn free_places(&self) -> (usize, usize) {
        (self.places.free.available_permits(), self.places.all)
    }
}

impl App {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            metrics: Arc::default(),
            served: OnceLock::new(),
            ending: AtomicBool::new(false),
            broken: Notify::new(),
            unknown_fields: Mutex::default(),
        }
    }

    /// Serves a model from now on. The first one stays.
    pub(crate) fn publish(&self, model: Model) {
        let places = Places::new(model.slots + self.settings.queue);
        assert!(
            self.served.set(Served { model: Arc::new(model), places }).is_ok(),
            "a server serves one model"
        );
    }

    /// The model, if it is there.
    pub(crate) fn loaded(&self) -> Option<&Served> {
        self.served.get()
    }

    /// The model, for a request.
    pub(crate) fn served(&self) -> Result<&Served, ApiError> {
        self.loaded().ok_or_else(|| ApiError::unavailable("the model is being loaded"))
    }

    /// No more requests are wanted.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Why the server is not ready for requests.
    pub(crate) fn not_ready(&self) -> Option<&'static str> {
        match self.loaded() {
            None => Some("the model is being loaded"),
            Some(_) if self.ending.load(Ordering::Relaxed) => Some("the server is about to end"),
            Some(served) if !served.model.engine.is_running() => Some("the engine has stopped"),
            Some(_) => None,
        }
    }

    /// Somebody noticed that the engine has stopped: the server can only end.
    pub(crate) fn engine_ended(&self) {
        self.broken.notify_one();
    }

    /// Says once for each name that a field is unknown.
    pub(crate) fn note_unknown(&self, names: impl Iterator<Item = String>) {
        for name in names {
            let mut told = self.unknown_fields.lock().unwrap_or_else(PoisonError::into_inner);
            if told.len() < MAX_UNKNOWN && !told.contains(&name) {
                let shown: String = name.chars().take(60).collect();
                tracing::info!(field = shown, "an unknown field of a request is ignored");
                told.push(name);
            }
        }
    }
}
