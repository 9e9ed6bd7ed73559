//! Forwarding of the calls that a wrapper does not look at.

/// Writes the named methods of [`crate::Backend`], which pass straight to `self.inner`. `load_and_peek` are those that no wrapper looks at.
macro_rules! delegate {
    ($($method:ident),+) => {
        $(crate::delegate::delegate_one!($method);)+
    };
}

macro_rules! delegate_one {
    (load_and_peek) => {
        fn info(&self) -> crate::BackendInfo {
            self.inner.info()
        }
        fn matrix(&mut self, source: crate::MatrixSource<'_>) -> Result<crate::Matrix, crate::BackendError> {
            self.inner.matrix(source)
        }
        fn experts(
            &mut self,
            experts: &[crate::ExpertSource<'_>],
            top_k: usize,
        ) -> Result<crate::Experts, crate::BackendError> {
            self.inner.experts(experts, top_k)
        }
        fn cluster_head(
            &mut self,
            head: &dyn crate::RowSource,
            order: &[u32],
            n_clusters: usize,
        ) -> Result<crate::ClusterHead, crate::BackendError> {
            self.inner.cluster_head(head, order, n_clusters)
        }
        fn vector(&mut self, values: &[f32]) -> crate::Vector {
            self.inner.vector(values)
        }
        fn table(
            &mut self,
            source: crate::TableSource,
            aliases: &[(u32, u32)],
        ) -> Result<crate::Table, crate::BackendError> {
            self.inner.table(source, aliases)
        }
        fn rope(&mut self, spec: crate::RopeSpec) -> crate::Rope {
            self.inner.rope(spec)
        }
        fn buffer(&mut self, rows: usize, width: usize) -> Result<crate::Buf, crate::BackendError> {
            self.inner.buffer(rows, width)
        }
        fn kv_group(
            &mut self,
            spec: crate::KvGroupSpec,
            n_blocks: usize,
        ) -> Result<crate::KvGroup, crate::BackendError> {
            self.inner.kv_group(spec, n_blocks)
        }
        fn reserve(
            &mut self,
            n_slots: usize,
            capacity: usize,
            max_rows: usize,
        ) -> Result<(), crate::BackendError> {
            self.inner.reserve(n_slots, capacity, max_rows)
        }
        fn live(&self, op: &crate::Op, rows: crate::Rows) -> (crate::Op, crate::Rows) {
            self.inner.live(op, rows)
        }
        fn peek(&self, buf: crate::Buf, row: usize) -> Vec<f32> {
            self.inner.peek(buf, row)
        }
        fn poke(&mut self, buf: crate::Buf, row: usize, values: &[f32]) {
            self.inner.poke(buf, row, values);
        }
        fn peek_kv(
            &self,
            layer: crate::KvLayer,
            slot: crate::SlotId,
            position: usize,
        ) -> (Vec<f32>, Vec<f32>) {
            self.inner.peek_kv(layer, slot, position)
        }
        fn peek_row(&self, rows: crate::Rows, index: usize) -> (crate::SlotId, usize) {
            self.inner.peek_row(rows, index)
        }
        fn peek_chosen(&self, wanted_row: usize) -> Option<crate::TokenId> {
            self.inner.peek_chosen(wanted_row)
        }
        fn peek_tokens(&self, slot: crate::SlotId) -> Vec<crate::TokenId> {
            self.inner.peek_tokens(slot)
        }
    };
    (open) => {
        fn open(&mut self, slot: crate::SlotId, init: crate::SlotInit) {
            self.inner.open(slot, init);
        }
    };
    (close) => {
        fn close(&mut self, slot: crate::SlotId) {
            self.inner.close(slot);
        }
    };
    (put_blocks) => {
        fn put_blocks(
            &mut self,
            slot: crate::SlotId,
            group: crate::KvGroup,
            first: usize,
            blocks: &[crate::KvBlockId],
        ) {
            self.inner.put_blocks(slot, group, first, blocks);
        }
    };
    (put_drafts) => {
        fn put_drafts(&mut self, slot: crate::SlotId, drafts: &[crate::TokenId]) {
            self.inner.put_drafts(slot, drafts);
        }
    };
    (truncate) => {
        fn truncate(&mut self, slot: crate::SlotId, len: usize) {
            self.inner.truncate(slot, len);
        }
    };
    (collect) => {
        fn collect(&mut self, slot: crate::SlotId) -> crate::SlotReport {
            self.inner.collect(slot)
        }
    };
    (begin) => {
        fn begin(&mut self, pass: &crate::Pass) {
            self.inner.begin(pass);
        }
    };
    (mark) => {
        fn mark(&mut self, mark: crate::Mark, buf: crate::Buf, rows: crate::Rows) {
            self.inner.mark(mark, buf, rows);
        }
    };
}

pub(crate) use {delegate, delegate_one};
