# Test double, written from a list of PFLlib's public names to stand in for a checkout: not PFLlib's code.
import argparse
import copy

import torch
from torch import nn

from flcore.servers.serveravg import FedAvg
from flcore.servers.serverlocal import Local
from flcore.servers.serverodd import Odd
from flcore.servers.serverrep import FedRep
from flcore.trainmodel.models import BaseHeadSplit, FedAvgCNN

torch.manual_seed(0)


def run(args):
    for i in range(args.prev, args.times):
        # build the network
        if args.model_name == "CNN":
            if "MNIST" in args.dataset:
                args.model = FedAvgCNN(in_features=1, num_classes=args.num_classes, dim=1024).to(args.device)
            elif "Cifar10" in args.dataset:
                args.model = FedAvgCNN(in_features=3, num_classes=args.num_classes, dim=1600).to(args.device)
            else:
                raise NotImplementedError
        else:
            raise NotImplementedError

        # choose the server
        if args.algorithm == "FedAvg":
            args.head = copy.deepcopy(args.model.fc)
            args.model.fc = nn.Identity()
            args.model = BaseHeadSplit(args.model, args.head)
            server = FedAvg(args, i)

        elif args.algorithm == "Local":
            server = Local(args, i)

        elif args.algorithm == "FedRep":
            args.head = copy.deepcopy(args.model.fc)
            args.model.fc = nn.Identity()
            args.model = BaseHeadSplit(args.model, args.head)
            server = FedRep(args, i)

        elif args.algorithm == "Odd":
            args.model.fc = nn.Identity()
            server = Odd(args, i)

        # elif args.algorithm == "Other":
        #     server = Other(args, i)
        else:
            raise NotImplementedError

        server.train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-go", "--goal", type=str, default="test")
    parser.add_argument("-dev", "--device", type=str, default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("-data", "--dataset", type=str, default="MNIST")
    parser.add_argument("-ncl", "--num_classes", type=int, default=10)
    parser.add_argument("-m", "--model", type=str, default="CNN")
    parser.add_argument("-lbs", "--batch_size", type=int, default=10)
    parser.add_argument("-lr", "--local_learning_rate", type=float, default=0.005)
    parser.add_argument("-ld", "--learning_rate_decay", type=bool, default=False)
    parser.add_argument("-ldg", "--learning_rate_decay_gamma", type=float, default=0.99)
    parser.add_argument("-gr", "--global_rounds", type=int, default=2000)
    parser.add_argument("-tc", "--top_cnt", type=int, default=100)
    parser.add_argument("-ls", "--local_epochs", type=int, default=1)
    parser.add_argument("-algo", "--algorithm", type=str, default="FedAvg")
    parser.add_argument("-jr", "--join_ratio", type=float, default=1.0)
    parser.add_argument("-rjr", "--random_join_ratio", type=bool, default=False)
    parser.add_argument("-nc", "--num_clients", type=int, default=20)
    parser.add_argument("-pv", "--prev", type=int, default=0)
    parser.add_argument("-t", "--times", type=int, default=1)
    parser.add_argument("-eg", "--eval_gap", type=int, default=1)
    parser.add_argument("-sfn", "--save_folder_name", type=str, default="items")
    parser.add_argument("-ab", "--auto_break", type=bool, default=False)
    parser.add_argument("-dlg", "--dlg_eval", type=bool, default=False)
    parser.add_argument("-dlgg", "--dlg_gap", type=int, default=100)
    parser.add_argument("-bnpc", "--batch_num_per_client", type=int, default=2)
    parser.add_argument("-nnc", "--num_new_clients", type=int, default=0)
    parser.add_argument("-ften", "--fine_tuning_epoch_new", type=int, default=0)
    parser.add_argument("-fs", "--few_shot", type=int, default=0)
    parser.add_argument("-cdr", "--client_drop_rate", type=float, default=0.0)
    parser.add_argument("-tsr", "--train_slow_rate", type=float, default=0.0)
    parser.add_argument("-ssr", "--send_slow_rate", type=float, default=0.0)
    parser.add_argument("-ts", "--time_select", type=bool, default=False)
    parser.add_argument("-tth", "--time_threthold", type=float, default=10000)
    parser.add_argument("-pls", "--plocal_epochs", type=int, default=1)

    args = parser.parse_args()
    args.model_name = args.model
    run(args)
