// Who writes where, as the next daemon has to know it: rows of sessions and of write leases in the shared
// metadata. A row is opened before anybody can act on what it says, and closed after nobody can any more.

#include "store/store_impl.h"

namespace tpu_sync_native {

LeaseId Store::Impl::NextLease() {
  index.NoteLastLease(++last_lease);
  return last_lease;
}

uint32_t Store::Impl::OpenLeaseRow(LeaseId lease, SessionId session, GroupId group) {
  const uint32_t row = lease_rows.Take();
  if (row != 0) index.OpenLeaseRow(row - 1, lease, session, group);
  return row;
}

void Store::Impl::CloseLeaseRow(uint32_t row) {
  if (row == 0) return;
  index.CloseLeaseRow(row - 1);
  lease_rows.returned.push_back(row);
}

bool Store::Impl::OpenSessionRow(SessionId id, SessionRecord* session) {
  session->row = session_rows.Take();
  if (session->row == 0) return false;
  SessionRow row{};
  row.session.store(id, std::memory_order_relaxed);
  row.boot_id = session->boot_id;
  row.group = session->group;
  row.start = session->mark.start;
  row.space = session->mark.space;
  row.pid = session->pid;
  index.OpenSessionRow(session->row - 1, row);
  return true;
}

void Store::Impl::CloseSessionRow(const SessionRecord& session) {
  if (session.row == 0) return;
  index.CloseSessionRow(session.row - 1);
  session_rows.returned.push_back(session.row);
}

}  // namespace tpu_sync_native
