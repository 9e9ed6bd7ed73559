//! `/metrics`: figures for Prometheus, under the names that dashboards for vLLM use where the meaning is the same.

use std::fmt::{self, Write as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paceline::{EngineStatus, Usage};

use crate::app::{App, Served};

/// Seconds over which the present speed is averaged.
const WINDOW: usize = 10;

/// Upper ends of the buckets of short times, in seconds.
const SHORT: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
/// Upper ends of the buckets of long times, in seconds.
const LONG: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0];
/// Upper ends of the buckets of token counts.
const COUNTS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5];

/// How outputs end.
const REASONS: [&str; 3] = ["stop", "length", "abort"];

/// Counters and distributions since the start.
#[derive(Debug)]
pub(crate) struct Metrics {
    prompt_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    finished: [AtomicU64; REASONS.len()],
    rejected: AtomicU64,
    responses: Mutex<Vec<((&'static str, u16), u64)>>,
    first_token: Histogram,
    between_tokens: Histogram,
    total: Histogram,
    prompt_sizes: Histogram,
    output_sizes: Histogram,
    recent: Mutex<Recent>,
    start: Instant,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            prompt_tokens: AtomicU64::default(),
            generation_tokens: AtomicU64::default(),
            finished: Default::default(),
            rejected: AtomicU64::default(),
            responses: Mutex::default(),
            first_token: Histogram::new(LONG),
            between_tokens: Histogram::new(SHORT),
            total: Histogram::new(LONG),
            prompt_sizes: Histogram::new(COUNTS),
            output_sizes: Histogram::new(COUNTS),
            recent: Mutex::default(),
            start: Instant::now(),
        }
    }
}

impl Metrics {
    /// The first token of an output came, so long after its request.
    pub(crate) fn first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64(), 1);
        self.generated(1);
    }

    /// Further tokens came together after a pause, which they share.
    pub(crate) fn tokens(&self, n: usize, pause: Duration) {
        if n > 0 {
            self.between_tokens.observe(pause.as_secs_f64() / n as f64, n as u64);
            self.generated(n as u64);
        }
    }

    fn generated(&self, n: u64) {
        self.generation_tokens.fetch_add(n, Ordering::Relaxed);
        lock(&self.recent).add(self.start.elapsed(), n);
    }

    /// An output ended.
    pub(crate) fn finished(&self, reason: &'static str, usage: Usage, total: Duration) {
        if let Some(index) = REASONS.iter().position(|other| *other == reason) {
            self.finished[index].fetch_add(1, Ordering::Relaxed);
        }
        self.prompt_tokens.fetch_add(usage.prompt_tokens as u64, Ordering::Relaxed);
        self.total.observe(total.as_secs_f64(), 1);
        self.prompt_sizes.observe(usage.prompt_tokens as f64, 1);
        self.output_sizes.observe(usage.completion_tokens as f64, 1);
    }

    /// There was no room for a request.
    pub(crate) fn rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was answered.
    pub(crate) fn answered(&self, path: &'static str, status: u16) {
        let mut responses = lock(&self.responses);
        match responses.iter_mut().find(|(key, _)| *key == (path, status)) {
            Some((_, count)) => *count += 1,
            None => responses.push(((path, status), 1)),
        }
    }
}

/// All figures as Prometheus reads them.
pub(crate) fn render(app: &App) -> String {
    let mut page = Page { text: String::new(), model: String::new() };
    if let Some(served) = app.loaded() {
        page.model = served.model.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        page.engine(&served.model.engine.status(), served);
    }
    page.requests(&app.metrics);
    page.text
}

/// A page that is being written.
struct Page {
    text: String,
    model: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // A string takes all that is written.
        let _ = writeln!(self.text, "{line}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.head(name, kind, help);
        let model = self.model.clone();
        self.line(format_args!("{name}{{model_name=\"{model}\"}} {value}"));
    }

    /// One series for each value of a label.
    fn by<L: fmt::Display>(
        &mut self,
        (name, help): (&str, &str),
        label: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) {
        self.head(name, "counter", help);
        let model = self.model.clone();
        for (key, value) in values {
            self.line(format_args!("{name}{{model_name=\"{model}\",{label}=\"{key}\"}} {value}"));
        }
    }

    fn engine(&mut self, status: &EngineStatus, served: &Served) {
        let (free, all) = served.free_places();
        self.one("vllm:num_requests_running", "gauge", "Outputs that have a slot.", status.running as f64);
        self.one(
            "vllm:num_requests_waiting",
            "gauge",
            "Outputs that wait for a slot.",
            status.waiting as f64,
        );
        self.one(
            "vllm:kv_cache_usage_perc",
            "gauge",
            "Share of the K/V blocks in use, 1 is all.",
            status.kv_use(),
        );
        self.one(
            "vllm:num_preemptions_total",
            "counter",
            "Times that an output lost its slot.",
            status.preemptions as f64,
        );
        self.one("paceline:rounds_total", "counter", "Rounds of the engine.", status.rounds as f64);
        self.one("paceline:slots", "gauge", "Outputs that can run at one time.", served.model.slots as f64);
        self.one("paceline:places", "gauge", "Outputs that can run or wait at one time.", all as f64);
        self.one("paceline:free_places", "gauge", "Places that are free.", free as f64);
        let drafts = &status.drafts;
        self.one(
            "vllm:spec_decode_num_drafts_total",
            "counter",
            "Verify passes of an output with at least one draft.",
            drafts.rounds as f64,
        );
        self.one(
            "vllm:spec_decode_num_draft_tokens_total",
            "counter",
            "Drafts in them.",
            drafts.drafted as f64,
        );
        self.one(
            "vllm:spec_decode_num_accepted_tokens_total",
            "counter",
            "Drafts that were emitted.",
            drafts.accepted as f64,
        );
        self.by(
            (
                "vllm:spec_decode_num_accepted_tokens_per_pos_total",
                "Drafts that were emitted, by their place in the round.",
            ),
            "position",
            drafts.accepted_by_position.iter().copied().enumerate(),
        );
    }

    fn requests(&mut self, metrics: &Metrics) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.one(
            "vllm:prompt_tokens_total",
            "counter",
            "Tokens of the prompts of ended outputs.",
            load(&metrics.prompt_tokens) as f64,
        );
        self.one(
            "vllm:generation_tokens_total",
            "counter",
            "Tokens that were emitted.",
            load(&metrics.generation_tokens) as f64,
        );
        self.one(
            "vllm:avg_generation_throughput_toks_per_s",
            "gauge",
            "Tokens a second over the last 10 seconds.",
            lock(&metrics.recent).rate(metrics.start.elapsed()),
        );
        self.by(
            ("vllm:request_success_total", "Outputs that ended, by reason."),
            "finished_reason",
            REASONS.into_iter().zip(metrics.finished.iter().map(load)),
        );
        self.one(
            "paceline:rejected_requests_total",
            "counter",
            "Requests for which there was no place.",
            load(&metrics.rejected) as f64,
        );
        self.head("paceline:http_responses_total", "counter", "Answers by path and status.");
        for ((path, status), count) in lock(&metrics.responses).clone() {
            self.line(format_args!(
                "paceline:http_responses_total{{path=\"{path}\",status=\"{status}\"}} {count}"
            ));
        }
        for (name, help, histogram) in [
            (
                "vllm:time_to_first_token_seconds",
                "Time to the first token of an output.",
                &metrics.first_token,
            ),
            (
                "vllm:inter_token_latency_seconds",
                "Time between tokens; those of a round share it.",
                &metrics.between_tokens,
            ),
            ("vllm:e2e_request_latency_seconds", "Time of whole outputs.", &metrics.total),
            ("vllm:request_prompt_tokens", "Tokens of prompts.", &metrics.prompt_sizes),
            ("vllm:request_generation_tokens", "Tokens of outputs.", &metrics.output_sizes),
        ] {
            self.histogram(name, help, histogram);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let model = self.model.clone();
        let (counts, sum) = histogram.read();
        let mut below = 0;
        for (end, count) in histogram.ends.iter().map(f64::to_string).chain(["+Inf".to_owned()]).zip(counts) {
            below += count;
            self.line(format_args!("{name}_bucket{{model_name=\"{model}\",le=\"{end}\"}} {below}"));
        }
        self.line(format_args!("{name}_sum{{model_name=\"{model}\"}} {sum}"));
        self.line(format_args!("{name}_count{{model_name=\"{model}\"}} {below}"));
    }
}

/// A distribution in buckets.
#[derive(Debug)]
struct Histogram {
    ends: &'static [f64],
    /// One more than there are ends; and the sum of all values.
    state: Mutex<(Vec<u64>, f64)>,
}

impl Histogram {
    fn new(ends: &'static [f64]) -> Self {
        Self { ends, state: Mutex::new((vec![0; ends.len() + 1], 0.0)) }
    }

    fn observe(&self, value: f64, times: u64) {
        let bucket = self.ends.partition_point(|end| *end < value);
        let (counts, sum) = &mut *lock(&self.state);
        counts[bucket] += times;
        *sum += value * times as f64;
    }

    fn read(&self) -> (Vec<u64>, f64) {
        lock(&self.state).clone()
    }
}

/// Tokens of each of the last seconds. Times are since the start.
#[derive(Debug, Default)]
struct Recent {
    /// Which second, and its tokens; at the place of the second's number modulo [`WINDOW`].
    seconds: [(u64, u64); WINDOW],
}

impl Recent {
    fn add(&mut self, now: Duration, tokens: u64) {
        let now = now.as_secs();
        let second = &mut self.seconds[(now % WINDOW as u64) as usize];
        if second.0 != now {
            *second = (now, 0);
        }
        second.1 += tokens;
    }

    fn rate(&self, now: Duration) -> f64 {
        let recent = self.seconds.iter().filter(|(second, _)| second + (WINDOW as u64) > now.as_secs());
        let tokens: u64 = recent.map(|(_, tokens)| tokens).sum();
        // Of the present second, which has taken the place of the oldest, only a part has passed.
        let passed = (WINDOW - 1) as f64 + f64::from(now.subsec_nanos()) / 1e9;
        tokens as f64 / passed.min(now.as_secs_f64()).max(1.0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_present_speed_is_that_of_the_last_seconds() {
        let at = Duration::from_secs_f64;
        let mut recent = Recent::default();
        assert_eq!(recent.rate(at(0.0)), 0.0);
        recent.add(at(0.2), 30);
        recent.add(at(1.5), 10);
        assert_eq!(recent.rate(at(2.0)), 20.0);
        // The first second is out of the window, the next one is not.
        recent.add(at(10.5), 55);
        assert_eq!(recent.rate(at(10.5)), (10.0 + 55.0) / 9.5);
        assert_eq!(recent.rate(at(11.0)), 55.0 / 9.0);
        assert_eq!(recent.rate(at(30.0)), 0.0);
    }

    #[test]
    fn a_value_counts_in_its_bucket_and_all_above() {
        let histogram = Histogram::new(&[1.0, 2.0]);
        for (value, times) in [(0.5, 1), (1.0, 2), (1.5, 4), (9.0, 8)] {
            histogram.observe(value, times);
        }
        assert_eq!(histogram.read(), (vec![3, 4, 8], 0.5 + 2.0 + 6.0 + 72.0));
        let mut page = Page { text: String::new(), model: "m".to_owned() };
        page.histogram("x", "Help.", &histogram);
        let expected = "# HELP x Help.\n# TYPE x histogram\nx_bucket{model_name=\"m\",le=\"1\"} 3\n\
                        x_bucket{model_name=\"m\",le=\"2\"} 7\nx_bucket{model_name=\"m\",le=\"+Inf\"} 15\n\
                        x_sum{model_name=\"m\"} 80.5\nx_count{model_name=\"m\"} 15\n";
        assert_eq!(page.text, expected);
    }

    #[test]
    fn bursts_share_their_time() {
        let metrics = Metrics::default();
        metrics.first_token(Duration::from_millis(20));
        metrics.tokens(4, Duration::from_millis(8));
        metrics.tokens(0, Duration::from_secs(1));
        let (counts, sum) = metrics.between_tokens.read();
        assert_eq!(counts[SHORT.partition_point(|end| *end < 0.002)], 4);
        assert!((sum - 0.008).abs() < 1e-9);
        assert_eq!(metrics.generation_tokens.load(Ordering::Relaxed), 5);
    }
}
