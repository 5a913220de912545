// Sessions, groups and quarantine.
//
// A write lease that ends without commit or abort leaves slots that somebody may still be writing into: its
// own process, or another one of its engine that copies under the same lease. Its slots wait until each
// session that was in the group at that moment has drained: said so itself, or been proven gone. Sessions
// that join later cannot know the lease. A commit or an abort that comes late ends the wait as well: it says
// that nobody of the group writes under the lease any more.

#include <algorithm>
#include <stdexcept>

#include "store/store_impl.h"

namespace tpu_sync_native {

void Store::Impl::OpenSession(SessionId session, GroupId group, uint32_t pid, const ProcessMark& mark) {
  if (sessions.count(session) == 1) {
    throw std::invalid_argument("session " + std::to_string(session) + " is open already");
  }
  // Before its row: a later daemon that finds the row must not give the number to another one.
  last_session = std::max(last_session, session);
  index.NoteLastSession(last_session);
  SessionRecord record{group, pid, /*closed=*/false, mark, options.boot_id};
  if (mark.maps && !OpenSessionRow(session, &record)) {
    throw std::invalid_argument("no more than " + std::to_string(session_rows.max) +
                                " sessions can be open, or closed with their processes alive");
  }
  sessions.emplace(session, record);
}

std::vector<SessionId> Store::Impl::WritersOf(GroupId group, std::optional<SessionId> except) const {
  std::vector<SessionId> writers;
  for (const auto& [id, session] : sessions) {
    if (session.group == group && session.mark.maps && id != except) writers.push_back(id);
  }
  return writers;
}

void Store::Impl::EndWrite(LeaseId id, const LeaseRecord& lease, std::vector<SessionId> writers) {
  if (writers.empty()) {
    AbortSlots(lease);
    return;
  }
  counters.quarantines += lease.slots.size();
  for (const uint32_t slot : lease.slots) {
    classes[slots.class_of(slot)].policy->Remove(slot);
    HashedKey key;
    index.KeyOf(slot, &key);
    index.Remove(key, slot);  // the key is free again, the slot is not
    index.SetState(slot, SlotState::kQuarantined);
    slots.Quarantine(slot);
  }
  quarantines.push_back({lease.group, id, lease.row, lease.session, std::move(writers), lease.slots});
}

void Store::Impl::EndLate(SessionId session, LeaseId lease) {
  const GroupId group = sessions.at(session).group;  // FindLease has found it
  for (Quarantine& quarantine : quarantines) {
    if (quarantine.lease == lease && quarantine.group == group) quarantine.writers.clear();
  }
  EndQuarantines();
}

bool Store::Impl::CloseSession(SessionId session, bool drained, const std::vector<LeaseId>* held) {
  const auto found = sessions.find(session);
  if (found == sessions.end()) return false;
  for (auto it = leases.begin(); it != leases.end();) {
    const LeaseRecord& lease = it->second;
    if (lease.session != session) {
      ++it;
      continue;
    }
    if (lease.kind == LeaseRecord::Kind::kRead) {
      Unpin(lease);  // a reader that is still copying finds the generation changed
    } else if (held != nullptr && std::find(held->begin(), held->end(), it->first) == held->end()) {
      AbortSlots(lease);  // its answer never reached anybody
    } else {
      EndWrite(it->first, lease, WritersOf(lease.group, drained ? std::optional(session) : std::nullopt));
    }
    it = leases.erase(it);
  }
  for (Quarantine& quarantine : quarantines) {
    if (held == nullptr || quarantine.session != session) continue;
    if (std::find(held->begin(), held->end(), quarantine.lease) == held->end()) quarantine.writers.clear();
  }
  found->second.closed = true;
  const bool kept = !drained && MayBeWriting(session);
  if (!kept) ForgetSession(session);
  EndQuarantines();
  return kept;
}

// What was leased in its time is in a quarantine by now; what its group is granted later it can be told of.
bool Store::Impl::MayBeWriting(SessionId session) const {
  const SessionRecord& record = sessions.at(session);
  if (!record.mark.maps) return false;
  if (!WritersOf(record.group, session).empty()) return true;
  return std::any_of(quarantines.begin(), quarantines.end(), [&](const Quarantine& quarantine) {
    return std::find(quarantine.writers.begin(), quarantine.writers.end(), session) !=
           quarantine.writers.end();
  });
}

void Store::Impl::ForgetSession(SessionId session) {
  const auto found = sessions.find(session);
  CloseSessionRow(found->second);
  sessions.erase(found);
  for (Quarantine& quarantine : quarantines) std::erase(quarantine.writers, session);
}

bool Store::Impl::Succeed(SessionId former, SessionId heir) {
  const auto from = sessions.find(former);
  const auto to = sessions.find(heir);
  if (from == sessions.end() || to == sessions.end() || former == heir) return false;
  if (!from->second.closed || from->second.group != to->second.group) return false;
  for (Quarantine& quarantine : quarantines) {
    std::vector<SessionId>& writers = quarantine.writers;
    const bool waits = std::find(writers.begin(), writers.end(), former) != writers.end();
    const bool waits_already = std::find(writers.begin(), writers.end(), heir) != writers.end();
    if (waits && !waits_already) writers.push_back(heir);
  }
  ForgetSession(former);
  return true;
}

void Store::Impl::EndQuarantines() {
  for (const Quarantine& quarantine : quarantines) {
    if (!quarantine.writers.empty()) continue;
    for (const uint32_t slot : quarantine.slots) {
      index.Free(slot);
      slots.Free(slot);
    }
    CloseLeaseRow(quarantine.row);
  }
  std::erase_if(quarantines, [](const Quarantine& quarantine) { return quarantine.writers.empty(); });
}

void Store::Impl::EndLateReads() {
  for (const uint32_t slot : late_slots) {
    index.Free(slot);
    slots.Free(slot);
  }
  late_slots.clear();
}

}  // namespace tpu_sync_native
